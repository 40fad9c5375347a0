// The first page: what is wrong, then the figures of the last hour or day, and who is behind.

import { denied } from "./api.js";
import { fill, h, table, tabs } from "./dom.js";
import { bytes, clock, count, day, percent, server, span, zone, DAY, HOUR, MINUTE } from "./format.js";
import { openFirst } from "./first.js";
import { addressOf, history, placesOf, rate, rateOf, series } from "./history.js";
import { lines } from "./lines.js";
import { Metrics } from "./metrics.js";
import { behind, lagOf, placed } from "./place.js";
import { lagLine } from "./places.js";
import { OTHERS, deadLink, deathsByReason, drawn, troubles } from "./wrong.js";

const REFRESH_MS = 10_000, LISTED = 1_000, TOP = 10, SHORTEST = 10 * MINUTE;
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
    const told = text === null ? null : new Metrics(text), metrics = told?.isWhole ? told : null;
    const known = {
      figures, metrics, points: hour?.points ?? null, endpoints: rows("endpoint", endpoints), groups: rows("group", groups), sessions: rows("session", sessions),
      cluster: told?.has("fasti_cluster_") ? await ask("/v1/cluster") : null,
    };
    if (isEmpty(metrics)) {
      isFirst ||= openFirst(root, context);
      return;
    }
    isFirst = false;
    const unseen = [[endpoints, "endpoints"], [metrics, "the server's figures"]].filter(([one]) => one === null).map(([, what]) => what);
    fill(root, h("h1", {}, "Overview"), h("section", { "aria-label": "What is wrong" }, drawn(troubles(known), unseen, metrics !== null),
        [endpoints, groups, sessions].some((one) => one?.next) ? h("p", { class: "faint" }, `Of groups, endpoints and clients the first ${count(LISTED)} each are looked at.`) : null),
      h("div", { class: "row" }, tabs(Object.entries(RANGES).map(([key, [text]]) => [text, `#/overview?range=${key}`]), name), shown && h("p", { class: "faint" }, begin(shown, step))),
      shown && h("div", { class: "columns" }, charts(shown, metrics)),
      h("div", { class: "columns" }, lag(known, shown?.points ?? []), reasons(shown?.points ?? [], name), failing(known)));
  }

  await load();
  every(REFRESH_MS, load);
  return end;
}

/** The places of a list; null where the key may not see it. */
const rows = (kind, page) => page && page[`${kind}s`].map((one) => placed(kind, one));

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

/** Who is behind: what the lists say now, and those of the last point that are not in them. */
function lag({ endpoints, groups, sessions }, points) {
  const known = points.length ? placesOf(points.at(-1)).map(([place, one]) => ({ ...place, href: addressOf(place), one: { ...one, undone: one } })) : [];
  const places = new Map([known, endpoints, groups, sessions].flatMap((each) => each ?? []).map((row) => [row.href, row]));
  const found = [...places.values()].filter(({ one }) => one.lag_messages).sort((a, b) => b.one.lag_messages - a.one.lag_messages).slice(0, TOP);
  return h("section", {}, h("h2", {}, "Lag by place"), found.length ? table([
    ["Place", (row) => [h("a", { href: row.href }, row.name), h("div", { class: "faint" }, row.filter || row.kind)], "text"],
    ["Messages", ({ one }) => lagOf(one), "number"],
    ["Oldest", ({ one }) => behind(one), "number"],
    ["Retries", ({ one }) => count(one.undone?.retries), "number"],
    ["Trend", (row) => lagLine(points, row)],
  ], found, "Lag by place") : h("p", { class: "empty" }, "Nobody is behind: each group, endpoint and session has read what was due."));
}

/** Why messages wait for another try, and why they were given up. */
function reasons(points, name) {
  const waiting = { __proto__: null, ...points.at(-1)?.retries_by_reason }, dead = deathsByReason(points);
  const rows = [...new Set([...Object.keys(waiting), ...Object.keys(dead)])];
  const cell = (page, of) => (reason) => !of[reason] ? "–" : reason === OTHERS ? count(of[reason]) : h("a", { href: `#/${page}?${new URLSearchParams({ reason })}` }, count(of[reason]));
  return h("section", {}, h("h2", {}, "Failed by reason"), rows.length ? table([
    ["Reason", (one) => one, "text"],
    ["Retries waiting", cell("retries", waiting), "number", (one) => waiting[one] ?? 0],
    [`Dead letters, ${name.toLowerCase()}`, cell("dead", dead), "number", (one) => dead[one] ?? 0],
  ], rows, "Failed by reason", { sort: "Retries waiting", down: true }) : h("p", { class: "empty" }, "No try has failed."));
}

/** Endpoints of whose last posts some failed; a key that does not see endpoints sees their share. */
function failing({ endpoints, points }) {
  const seen = endpoints ?? Object.entries(points?.at(-1)?.failing_endpoints ?? {}).map(([name, share]) => ({ name, href: addressOf({ kind: "endpoint", name }), one: { failing: { share } } }));
  const found = seen.filter(({ one }) => one.failing.share).sort((a, b) => b.one.failing.share - a.one.failing.share).slice(0, TOP);
  return h("section", {}, h("h2", {}, "Failing endpoints"), found.length ? table([
    ["Endpoint", (row) => h("a", { href: row.href }, row.name), "text"],
    ["Failed", ({ one: { failing: { share, of } } }) => `${percent(share)}${of ? ` of ${count(of)}` : ""}`, "nowrap"],
    ["Last reason", ({ one }) => one.failing.last_reason ?? "–", "text"],
    ["Retries", ({ one }) => count(one.undone?.retries), "number"],
    ["Dead letters", (row) => row.one.dead_letters ? deadLink(row) : "–", "nowrap", ({ one }) => one.dead_letters],
  ], found, "Failing endpoints") : h("p", { class: "empty" }, "No post has failed."));
}
