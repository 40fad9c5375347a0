// Places: who receives messages, how far behind each is, and what it has not finished. Endpoints have a page of their own.

import { denied, part } from "./api.js";
import { button, entries, field, fill, h, moment, spark, submitted, table, tabs, tag } from "./dom.js";
import { away, count, server, span } from "./format.js";
import { history, lagSeries } from "./history.js";
import { openPlace } from "./one_place.js";
import { behind, deadOf, failed, lagOf, ORDER, placed, stateOf } from "./place.js";

const MOST = 1_000, REFRESH_MS = 5_000;
const TITLES = { group: "Groups", endpoint: "Endpoints", session: "Sessions" };

export const VIEWS = [["All", "#/places"], ["Groups", "#/places?kind=group"], ["Endpoints", "#/endpoints"], ["Sessions", "#/places?kind=session"]];

export async function open(root, context) {
  const [kind, name] = context.path;
  if (kind === "group" && name) return openGroup(root, context, name, context.query.filter);
  if (kind === "session" && name) return openSession(root, context, name);
  return openList(root, context);
}

/** All places of these kinds, up to MOST of each: { rows, hidden: kinds that the key may not see, cut: those of
 *  which there are more }. */
export async function placesOf(api, kinds) {
  const found = await Promise.all(kinds.map((kind) => api.all(`/v1/${kind}s`, {}, `${kind}s`, { most: MOST }).catch(denied)));
  return {
    rows: found.flatMap((one, index) => (one?.rows ?? []).map((row) => placed(kinds[index], row))),
    hidden: kinds.filter((_, index) => found[index] === null),
    cut: kinds.filter((_, index) => found[index] && !found[index].isWhole),
  };
}

export const cutNote = (cut) => cut.length ? h("p", { class: "faint" }, `Only the first ${count(MOST)} ${cut.map((kind) => `${kind}s`).join(" and ")} by name are shown.`) : null;

/** Columns that every kind of place has; `points`: of the history, or none. */
export function columns(points) {
  const retries = ({ one, called }) => one.undone?.retries ? h("a", { href: `#/retries?${new URLSearchParams({ group: called })}` }, count(one.undone.retries)) : count(one.undone?.retries);
  const dead = ({ one, name, kind, called }) => one.dead_letters ? h("a", { href: `#/dead?${new URLSearchParams({ group: kind === "endpoint" ? called : name })}` }, deadOf(one)) : deadOf(one);
  return [
    ["State", (row) => tag(...stateOf(row)), "nowrap", (row) => ORDER.indexOf(stateOf(row)[1])],
    ["Lag", ({ one }) => lagOf(one), "number", ({ one }) => one.lag_messages],
    ["Behind", ({ one }) => behind(one), "number", ({ one }) => one.lag_seconds],
    ...(points ? [["Lag, last hour", (row) => lagLine(points, row)]] : []),
    ["In flight", ({ one }) => count(one.in_flight), "number", ({ one }) => one.in_flight],
    ["Retries", retries, "number", ({ one }) => one.undone?.retries],
    ["Next try", ({ one }) => nextTry(one), "nowrap", ({ one }) => one.undone?.next_retry_at],
    ["Dead letters", dead, "number", ({ one }) => one.dead_letters],
    ["Failed tries", ({ one }) => failed(one), "nowrap", ({ one }) => (one.failing ? one.failing.share : one.delivered ? one.failed / one.delivered : null)],
  ];
}

const nextTry = ({ undone }) => undone?.next_retry_at ? (Date.parse(undone.next_retry_at) > server.now() ? away(undone.next_retry_at, server.now()) : "due") : null;

/** The course of a place's lag in these points. */
export function lagLine(points, row) {
  const values = lagSeries(points, row).map(([, value]) => value);
  return values.length > 1 ? spark(values, `Lag: ${count(values.at(-1))} messages now, ${count(Math.max(...values))} at most`, 110, 24) : null;
}

async function openList(root, { api, query, go, every }) {
  const kinds = TITLES[query.kind] ? [query.kind] : Object.keys(TITLES);
  const body = h("div"), order = { sort: "Lag", down: true };
  let shown = { rows: [], cut: [] };
  const form = h("form", { class: "row", role: "search", onsubmit: submitted(() => find(entries(form).name ?? "")) },
    field("Name, or a part of it", "name", { value: query.name }), h("button", {}, "Find"));
  fill(root, h("h1", {}, "Places"), tabs(VIEWS, TITLES[query.kind] ?? "All"), form, body);

  async function load() {
    const [found, past] = await Promise.all([placesOf(api, kinds), history(api).catch(denied)]);
    shown = found;
    const rows = found.rows.filter((row) => !query.name || row.name.includes(query.name));
    fill(body, rows.length ? table([
      ["Place", (row) => [h("div", {}, h("a", { href: row.href }, row.name)), h("code", { class: "faint" }, about(row))], "text", (row) => row.name],
      ...(kinds.length > 1 ? [["Kind", (row) => row.kind, "nowrap", (row) => row.kind]] : []),
      ...columns(past?.points),
    ], rows, "Places", order) : query.name ? h("p", { class: "empty" }, "No place has this in its name.") : nobody(), cutNote(found.cut));
  }

  /** The place of this name, or those that have it in theirs. Not all sessions may have been read. */
  async function find(name) {
    const same = shown.rows.filter((row) => row.name === name);
    if (same.length === 1) return go(same[0].href.slice(1));
    const isThere = name && !same.length && shown.cut.includes("session") && (await api.get(`/v1/sessions/${part(name)}`).catch(() => null));
    return go(isThere ? `/places/session/${part(name)}` : `/places?${new URLSearchParams({ ...(query.kind ? { kind: query.kind } : {}), ...(name ? { name } : {}) })}`);
  }

  await load();
  every(REFRESH_MS, load, () => shown.rows.length);
}

function about({ kind, filter, one }) {
  if (kind !== "session") return filter || one.url;
  const filters = one.subscriptions.map((each) => each.filter);
  return filters.slice(0, 3).join("  ") + (filters.length > 3 ? `  and ${filters.length - 3} more` : "");
}

const nobody = () => h("div", { class: "empty" },
  h("p", {}, "There are no places yet. A place receives messages: it is a ", h("b", {}, "session"), " (an MQTT client), a ", h("b", {}, "group"), " (workers that share the messages of a filter) or an ", h("b", {}, "endpoint"), " (a URL that messages are posted to). This creates a group:"),
  h("pre", { tabindex: "0" }, `curl -X PUT ${location.origin}/v1/groups/workers -H 'content-type: application/json' -d '{"filter":"orders/#"}'`));

async function openGroup(root, context, name, filter) {
  const order = {};
  const read = async () => (await context.api.get(`/v1/groups/${part(name)}`, { filter })).groups.map((one) => placed("group", one));
  const found = await read();
  if (found.length > 1) {
    return fill(root, h("h1", {}, name), h("p", { class: "faint" }, "Several groups have this name, one for each filter."),
      table([["Filter", (row) => h("a", { href: row.href }, row.filter), "text"], ...columns(null)], found, name));
  }
  return openPlace(root, context, {
    read: async () => (await read())[0],
    settings: (one) => [
      ["Time to acknowledge", one.ack_timeout ? span(one.ack_timeout * 1_000) : "no limit"],
      ["Maximum tries", one.max_attempts ? count(one.max_attempts) : "no limit"],
      ["Delay before each retry", one.backoff.map((s) => span(s * 1_000)).join(", ")],
      ["Rate", one.rate ? `at most ${one.rate} a second` : "no limit"],
      ["No members since", one.left_at && moment(one.left_at)],
    ],
    more: (one) => [h("h2", {}, "Members"), one.members.length ? table([
      ["Client", (each) => h("a", { href: `#/places/session/${part(each.client_id)}` }, each.client_id), "text", (each) => each.client_id],
      ["Connection", (each) => tag(each.connected ? "connected" : "offline", each.connected ? "good" : null)],
      ["QoS", (each) => each.qos, "number"],
      ["In flight", (each) => count(each.in_flight), "number", (each) => each.in_flight],
    ], one.members, "Members", order) : h("p", { class: "empty" }, "No members are connected. A member subscribes to ", h("code", {}, `$share/${name}/${one.filter}`), " or leases messages.")],
  });
}

const openSession = (root, context, id, order = {}) => openPlace(root, context, {
  read: async () => placed("session", await context.api.get(`/v1/sessions/${part(id)}`)),
  settings: (one) => [["Connected since", one.connected_at && moment(one.connected_at)], ["Offline since", one.left_at && moment(one.left_at)]],
  more: (one) => [h("h2", {}, "Subscriptions"), table([
    ["Filter", (each) => h("code", {}, each.filter), "text", (each) => each.filter],
    ["QoS", (each) => each.qos, "number"],
    ["Since", (each) => moment(each.since), "nowrap", (each) => each.since],
  ], one.subscriptions, "Subscriptions", order)],
});
