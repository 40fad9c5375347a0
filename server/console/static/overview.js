// The first page: what is wrong, then the figures of the last hour or day, and who is behind.

import { denied } from "./api.js";
import { fill, h, spark, table, tabs } from "./dom.js";
import { bytes, clock, count, day, percent, server, span, zone, DAY, HOUR, MINUTE } from "./format.js";
import { openFirst } from "./first.js";
import { addressOf, history, lagSeries, placesOf, rate, rateOf, series } from "./history.js";
import { lines } from "./lines.js";
import { Metrics } from "./metrics.js";
import { OTHERS, deadOf, drawn, troubles } from "./wrong.js";

const REFRESH_MS = 10_000, LISTED = 200, TOP = 10, SHORTEST = 10 * MINUTE;
const RANGES = { hour: ["Last hour", HOUR, MINUTE], day: ["Last day", DAY, 10 * MINUTE] };

export async function open(root, context) {
  const { api, live, query, every } = context;
  const [name, length, step] = RANGES[query.range] ?? RANGES.hour;
  const ask = asker(api);
  let figures = null, isFirst = false;
  const end = live.on((now) => { figures = now; });

  async function load() {
    const [text, endpoints, groups, sessions, hour, shown] = await Promise.all([
      ask("/metrics"), ask("/v1/endpoints", { limit: LISTED }), ask("/v1/groups", { limit: LISTED }), ask("/v1/sessions", { limit: LISTED }),
      history(api), history(api, { from: server.now() - length, step }),
    ]);
    const metrics = text === null ? null : new Metrics(text);
    const known = {
      figures, metrics, points: hour?.points ?? null, endpoints: endpoints?.endpoints ?? null, groups: groups?.groups ?? null, sessions: sessions?.sessions ?? null,
      cluster: metrics?.has("fasti_cluster_") ? await ask("/v1/cluster") : null,
    };
    if (isEmpty(metrics)) {
      isFirst ||= openFirst(root, context);
      return;
    }
    isFirst = false;
    const unseen = [[endpoints, "endpoints"], [metrics, "the server's figures"]].filter(([one]) => one === null).map(([, what]) => what);
    fill(root, h("h1", {}, "Overview"), h("section", { "aria-label": "What is wrong" }, drawn(troubles(known), unseen, metrics !== null)),
      h("div", { class: "row" }, tabs(Object.entries(RANGES).map(([key, [text]]) => [text, `#/overview?range=${key}`]), name), shown && h("p", { class: "faint" }, begin(shown, step))),
      shown && h("div", { class: "columns" }, charts(shown, metrics)),
      h("div", { class: "columns" }, lag(known, shown?.points ?? []), reasons(shown?.points ?? [], name), failing(known)));
  }

  await load();
  every(REFRESH_MS, load);
  return end;
}

/** `get` of what a key may be denied: then null, and it is not asked for again here. */
function asker(api) {
  const no = new Set();
  return async (path, query) => {
    if (no.has(path)) return null;
    const found = await api.get(path, query).catch(denied);
    if (found === null) no.add(path);
    return found;
  };
}

const HOLDS = ["slices.max", "limits.sessions", "limits.groups", "limits.schedules", "limits.endpoints"];

/** Nothing stored, nobody there. */
const isEmpty = (metrics) => metrics !== null && metrics.limits().every((one) => !one.used || !HOLDS.includes(one.name));

/** Since when there are figures. */
function begin({ since, from, points }, step) {
  if (!points.length) return "The first figures come within ten seconds.";
  if (since <= from + step) return null;
  return `Figures begin at ${day(since) === day(server.now()) ? "" : `${day(since)} `}${clock(since)} ${zone.name}. The server keeps them in memory, since its start.`;
}

function charts({ points, since, from: wanted, to }, metrics) {
  const from = Math.max(wanted, Math.min(since ?? 0, to - SHORTEST));  // of a young server only its life
  const chart = (title, say, note, ...of) => lines({ title, say, note, from, to, series: of.map(([name, value]) => [name, series(points, value)]) });
  const limit = metrics?.limits().find((one) => one.name === "limits.memory")?.bound;
  const last = points.at(-1);
  return [
    chart("Throughput", rate, null, ["in", rateOf("accepted", "published")], ["out", rateOf("delivered", "leased", "posted")]),
    chart("Lateness", span, null, ["50 % within", (one) => one.lateness && one.lateness.p50_ms], ["99 % within", (one) => one.lateness && one.lateness.p99_ms]),
    chart("Pending", count, null, ["messages", "pending"]),
    chart("Failed", count, null, ["retries waiting", "retries"], ["dead letters", "dead_letters"]),
    chart("Memory", bytes, limit && `of at most ${bytes(limit)}`, ["used", "memory_bytes"]),
    chart("Disk", bytes, last?.disk_free_bytes && `${bytes(last.disk_free_bytes)} free`, ["data", "store_bytes"]),
  ];
}

const KINDS = { group: "group", endpoint: "endpoint", session: "client" };

/** Who is behind: what the lists say now, and those of the last point that are not in them. */
function lag({ endpoints, groups, sessions }, points) {
  const places = new Map(), add = (place, row) => places.set(addressOf(place), { ...row, place });
  for (const [place, row] of points.length ? placesOf(points.at(-1)) : []) add(place, row);
  for (const row of endpoints ?? []) if (row.undone) add({ kind: "endpoint", name: row.name }, { ...row, retries: row.undone.retries });
  for (const row of groups ?? []) add({ kind: "group", name: row.name, filter: row.filter }, { ...row, retries: row.undone.retries });
  for (const row of sessions ?? []) add({ kind: "session", name: row.client_id }, { ...row, retries: row.undone.retries });
  const rows = [...places.values()].filter((one) => one.lag_messages).sort((a, b) => b.lag_messages - a.lag_messages).slice(0, TOP);
  return h("section", {}, h("h2", {}, "Lag by place"), rows.length ? table([
    ["Place", ({ place }) => [h("a", { href: addressOf(place) }, place.name), h("div", { class: "faint" }, place.filter || KINDS[place.kind])], "text"],
    ["Messages", (one) => `${count(one.lag_messages)}${one.lag_messages_is_exact ? "" : " or more"}`, "number"],
    ["Oldest", (one) => span(one.lag_seconds * 1_000), "nowrap"],
    ["Retries", (one) => count(one.retries), "number"],
    ["Course", ({ place }) => course(points, place)],
  ], rows, "Lag by place") : h("p", { class: "empty" }, "Nobody is behind: each group, endpoint and client has read what was due."));
}

/** The lag of the last hour or day in messages. */
function course(points, place) {
  const values = lagSeries(points, place).map(([, value]) => value);
  return values.length > 1 ? spark(values, `lag in messages: largest ${count(Math.max(...values))}, now ${count(values.at(-1))}`) : "–";
}

/** Why messages wait for another try, and why they were given up. */
function reasons(points, name) {
  const waiting = points.at(-1)?.retries_by_reason ?? {}, dead = deadOf(points);
  const rows = [...new Set([...Object.keys(waiting), ...Object.keys(dead)])];
  const cell = (page, of) => (reason) => !of[reason] ? "–" : reason === OTHERS ? count(of[reason]) : h("a", { href: `#/${page}?${new URLSearchParams({ reason })}` }, count(of[reason]));
  return h("section", {}, h("h2", {}, "Failed by reason"), rows.length ? table([
    ["Reason", (one) => one, "text"],
    ["Retries waiting", cell("retries", waiting), "number", (one) => waiting[one] ?? 0],
    [`Dead, ${name.toLowerCase()}`, cell("dead", dead), "number", (one) => dead[one] ?? 0],
  ], rows, "Failed by reason", { sort: "Retries waiting", down: true }) : h("p", { class: "empty" }, "No try has failed."));
}

/** Endpoints of whose last posts some failed; a key that does not see endpoints sees their share. */
function failing({ endpoints, points }) {
  const seen = endpoints ?? Object.entries(points?.at(-1)?.failing_endpoints ?? {}).map(([name, share]) => ({ name, failing: { share } }));
  const rows = seen.filter((one) => one.failing.share).sort((a, b) => b.failing.share - a.failing.share).slice(0, TOP);
  return h("section", {}, h("h2", {}, "Failing endpoints"), rows.length ? table([
    ["Endpoint", (one) => h("a", { href: addressOf({ kind: "endpoint", name: one.name }) }, one.name), "text"],
    ["Failed", ({ failing: { share, of } }) => `${percent(share)}${of ? ` of ${count(of)}` : ""}`, "nowrap"],
    ["Last reason", (one) => one.failing.last_reason ?? "–", "text"],
    ["Retries", (one) => count(one.undone?.retries), "number"],
  ], rows, "Failing endpoints") : h("p", { class: "empty" }, "No post has failed."));
}
