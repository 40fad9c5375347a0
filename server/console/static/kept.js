// What is kept of messages for one place, retries and dead letters: found by place, topic, reason, id, key and time, and
// changed: one at once; the selected ones, or all that are found, after a dry run.
//
// The same message may be kept for two places: its id and its place name one.

import { attempt, confirm, dryRun, notice, reasons as reasonsOf } from "./ask.js";
import { button, entries, field, fill, h, moment, submitted, table, tabs } from "./dom.js";
import { count, span, toApi } from "./format.js";
import { glimpse } from "./payload.js";
import { keeperOf } from "./place.js";
import { OUTCOMES, person } from "./story.js";

const PAGE = 200, IDS = 1_000;
const REASONS = 8, REASON_CHARS = 70;
const CHOSEN = { group: "group", topic: "topic", reason: "reason", id: "id", key: "key", since: "from", until: "to" };
const EVERYTHING = { topic: "#" };
const LATE = "Nothing has changed: it is no longer in this list";

/** The `open` of a page with all places. `kind`: { path, member, page, title, one, many, when: [heading, row -> time],
 *  empty, untilNow: a filter of what is there by now, actions }; an action: { verb, name, many: its name for many, would,
 *  done, kind, ask: fields for a change of many, sure: what is confirmed for one, undo: row -> [path, body] }. */
export const opener = (kind) => async (root, { api, query, go }) => {
  const form = h("form", { class: "row", role: "search", "aria-label": kind.title, onsubmit: submitted(() => go(`/${kind.page}?${new URLSearchParams(entries(form))}`)) },
    field("Place", "group", { value: query.group, placeholder: "name or client id" }), field("Topic filter", "topic", { value: query.topic, placeholder: "orders/#" }),
    field("Part of the reason", "reason", { value: query.reason }), field("Message id", "id", { value: query.id }), field("Idempotency key", "key", { value: query.key }),
    field(`${kind.when[0]} from`, "since", { value: query.since, placeholder: "2026-12-24 09:00" }), field(`${kind.when[0]} before`, "until", { value: query.until, placeholder: "2026-12-25" }),
    h("button", { class: "act" }, "Search"));
  const list = keptList(api, kind, Object.fromEntries(Object.keys(CHOSEN).filter((name) => query[name]).map((name) => [name, query[name]])));
  const isFiltered = Object.keys(CHOSEN).some((name) => query[name]);
  fill(root, h("h1", {}, kind.title), h("details", { class: "filters", open: isFiltered || innerWidth > 600 }, h("summary", {}, "Filter"), form), list.node);
  await list.load();
};

/** The list: { node, load }. `chosen`: what its form says; `isOfOne`: of one place, which is not told in each row;
 *  `changed`: called when something has changed. */
export function keptList(api, kind, chosen, { isOfOne = false, changed = () => {} } = {}) {
  const filter = Object.fromEntries(Object.entries(chosen).map(([name, value]) => [CHOSEN[name], name === "since" || name === "until" ? toApi(value) : value]));
  const node = h("div"), tools = h("div"), rows = [], ticked = new Set(), order = {};
  let cursor = null, total = 0, reading = 0;

  const load = () => read(null);
  const more = () => read(cursor);

  /** The page behind `after`, or all anew; of several readings at once the last one counts. */
  async function read(after) {
    const turn = ++reading;
    const page = await api.get(kind.path, { ...filter, limit: PAGE, cursor: after, count: after === null });
    if (turn !== reading) return;
    if (after === null) { rows.length = 0; ticked.clear(); }
    rows.push(...page[kind.member]);
    total = page.count ?? total;
    cursor = page.next;
    draw();
  }

  function draw() {
    drawTools();
    const isNarrowed = Object.keys(chosen).length > (isOfOne ? 1 : 0);
    fill(node, reasons(), tools, rows.length ? drawn() : h("p", { class: "empty" }, cursor ? "None so far." : isNarrowed ? `No ${kind.many} match.` : kind.empty),
      cursor ? h("div", { class: "row" }, button("Show more", () => attempt(more, null)), h("span", { class: "faint" }, `${count(rows.length)} of ${count(total)} are shown. Reasons and order are those of the shown ones`)) : null);
  }

  /** Reasons with their number among what is shown; a click finds those alone. */
  function reasons() {
    const found = [...Map.groupBy(rows, (row) => row.reason)].map(([reason, of]) => [reason, of.length]).sort((a, b) => b[1] - a[1]);
    if (found.length < 2 && !chosen.reason) return null;
    const { reason: _, ...others } = chosen;
    const link = (name, more) => [name, `#/${kind.page}?${new URLSearchParams({ ...others, ...more })}`];
    const links = tabs([link("All reasons", {}), ...found.slice(0, REASONS).map(([reason, n]) => link(`${short(reason)} · ${count(n)}`, { reason }))],
      found.length === 1 ? `${short(found[0][0])} · ${count(found[0][1])}` : "All reasons");
    links.setAttribute("aria-label", `${kind.title} by reason`);
    return links;
  }

  function drawTools() {
    const isAll = ticked.size === rows.length;
    const buttons = (which, bodies) => kind.actions.map((one) => button(`${one.many?.(which) ?? `${one.name} ${which}`}…`, () => change(one, bodies()), one.kind));
    fill(tools, rows.length ? h("div", { class: "row" },
      button(isAll ? "Select none" : "Select all", () => { for (const row of rows) isAll ? ticked.delete(row) : ticked.add(row); draw(); }),
      ticked.size ? buttons(`${count(ticked.size)} selected`, () => named(ticked))
        : buttons(total === 1 ? "it" : `all ${count(total)}`, () => (cursor === null ? named(rows) : [{ filter: { ...kind.untilNow?.(), ...(Object.keys(filter).length ? filter : EVERYTHING) } }]))) : null);
  }

  const drawn = () => table([
    ["Select", (row) => h("input", { type: "checkbox", checked: ticked.has(row), "aria-label": `Select ${row.id} of ${row.group}`, onchange: (event) => { event.target.checked ? ticked.add(row) : ticked.delete(row); drawTools(); } })],
    [kind.when[0], (row) => moment(kind.when[1](row)), "nowrap", kind.when[1]],
    ...(isOfOne ? [] : [["Place", keeperOf, "text", (row) => row.group]]),
    ["Message", (row) => [h("div", {}, row.topic), h("a", { class: "mono", href: `#/messages/${row.id}` }, row.id)], "text", (row) => row.topic],
    ["Tries", tries, "text", (row) => row.attempts],
    ["Reason", (row) => row.reason, "text", (row) => row.reason],
    ["Payload", (row) => h("code", {}, glimpse(row, 40)), "text"],
    ["Actions", (row) => kind.actions.map((one) => [button(one.sure ? `${one.name}…` : one.name, () => changeOne(one, row), one.kind), " "]), "actions"],
  ], rows, kind.title, order);

  /** What names these: ids, a body for each place and each IDS of them. */
  function named(these) {
    return [...Map.groupBy(these, place)].flatMap(([group, of]) => Array.from({ length: Math.ceil(of.length / IDS) },
      (_, index) => ({ ids: of.slice(index * IDS, (index + 1) * IDS).map((row) => row.id), group })));
  }

  async function post(verb, bodies, more) {
    const sum = { matched: 0, changed: 0 };
    for (const one of bodies) {
      const { matched, changed } = await api.post(`${kind.path}:${verb}`, { ...one, ...more });
      sum.matched += matched;
      sum.changed += changed;
    }
    return sum;
  }

  async function again() {
    await attempt(load, null);
    changed();
  }

  async function changeOne(action, row) {
    if (action.sure && !(await confirm(`${action.name} this message for ${row.group}?`, action.sure, action.name))) return;
    try {
      const { changed: n } = await post(action.verb, [{ ids: [row.id], group: place(row) }]);
      notice(n ? action.done : LATE, n ? "good" : "bad", n && action.undo ? () => back(action.undo(row)) : null);
    } catch (error) {
      notice(reasonsOf(error), "bad");
    }
    await again();
  }

  async function back([path, body]) {
    await attempt(() => api.post(path, body), ({ changed: n }) => (n ? "It waits for its next try again, and has all its tries" : LATE));
    await again();
  }

  async function change({ verb, name, would, kind: how = "act", ask }, bodies) {
    await dryRun({ what: [kind.one, kind.many], would, act: name, kind: how, ask: ask?.(), run: ({ after: _, ...more }) => post(verb, bodies, more) });
    await again();
  }

  return { node, load };
}

/** What the API knows a row's place by. */
export const place = (row) => row.subscription ?? row.group;

const short = (reason) => reason.length > REASON_CHARS ? `${reason.slice(0, REASON_CHARS)}…` : reason || "no reason";

/** How many tries there were, and each that failed, the last one first. */
function tries(row) {
  if (!row.tries.length) return count(row.attempts);
  return h("details", {}, h("summary", {}, `${count(row.attempts)} ${row.attempts === 1 ? "try" : "tries"}`),
    h("ol", { class: "tries", reversed: true, start: row.attempts }, row.tries.toReversed().map((one) => h("li", {}, moment(one.at), ` ${OUTCOMES[one.outcome] ?? one.outcome}`,
      one.by && one.by !== row.group ? ` with ${person(one.by)}` : "", one.seconds === null ? "" : ` after ${span(one.seconds * 1_000)}`, one.reason ? `: ${one.reason}` : ""))));
}
