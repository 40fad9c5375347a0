// What is kept of messages for one place, as the pages of retries and of dead letters show it: found by group, topic,
// reason and id, and changed: one at once; the ticked ones, or all that the search finds, after a dry run.
//
// The same message may be kept for two places: its id and its place name one.

import { attempt, dialog, notice, reasons } from "./ask.js";
import { button, entries, field, fill, h, table } from "./dom.js";
import { away, count, instant, server } from "./format.js";
import { glimpse } from "./payload.js";

const PAGE = 100;
const CHOSEN = ["group", "topic", "reason", "id", "key", "from", "to"];

/** The `open` of a page. `when`: [heading, row -> time]; `actions`: { verb, name, act, done, kind, ask }, `act` for many
 *  and `done` of one in words, `ask` a field of the body for who changes many. */
export const opener = (kind) => (root, context) => open(root, context, kind);

const place = (row) => row.subscription ?? row.group;

async function open(root, { api, query, go }, { path, member, title, many, when: [heading, at], actions }) {
  const filter = Object.fromEntries(CHOSEN.filter((name) => query[name]).map((name) => [name, query[name]]));
  const form = h("form", { class: "row", role: "search", onsubmit: (event) => { event.preventDefault(); go(`/${path.split("/").pop()}?${new URLSearchParams(entries(form))}`); } },
    field("Group, endpoint or client", "group", { value: query.group }), field("Topic filter", "topic", { value: query.topic }),
    field("Part of the reason", "reason", { value: query.reason }), field("Id", "id", { value: query.id }), h("button", { class: "act" }, "Search"));
  const tools = h("div"), body = h("div"), rows = [], ticked = new Set();
  let cursor = null;
  fill(root, h("h1", {}, title), form, tools, body);

  async function more() {
    const page = await api.get(path, { ...filter, limit: PAGE, cursor });
    rows.push(...page[member]);
    cursor = page.next;
    draw();
  }

  function draw() {
    drawTools();
    fill(body, rows.length ? drawn() : h("p", { class: "empty" }, cursor ? "None so far." : `No ${many}.`), cursor ? button("More", () => attempt(more, null)) : null);
  }

  function drawTools() {
    const isAll = ticked.size === rows.length;
    const buttons = (which, bodies) => actions.map((one) => button(`${one.name} ${which}…`, () => change(one, bodies()), one.kind));
    fill(tools, rows.length ? h("div", { class: "row" },
      button(isAll ? "Tick none" : "Tick all", () => { for (const row of rows) isAll ? ticked.delete(row) : ticked.add(row); draw(); }),
      ticked.size ? buttons("the ticked", chosen) : null,
      Object.keys(filter).length ? buttons("all of these", () => [{ filter }]) : null) : null);
  }

  const drawn = () => table([
    ["Tick", (row) => h("input", { type: "checkbox", checked: ticked.has(row), "aria-label": `Tick ${row.id} of ${row.group}`, onchange: (event) => { event.target.checked ? ticked.add(row) : ticked.delete(row); drawTools(); } })],
    [heading, (row) => h("span", { title: away(at(row), server.now()) }, instant(at(row))), "nowrap"],
    ["Of", (row) => row.group, "text"],
    ["Message", (row) => [h("div", {}, row.topic), h("a", { class: "mono", href: `#/messages/${row.id}` }, row.id)], "text"],
    ["Tries", (row) => count(row.attempts), "number"],
    ["Reason", (row) => row.reason, "text"],
    ["Payload", (row) => h("code", {}, glimpse(row, 40)), "text"],
    ["Actions", (row) => actions.map((one) => [button(one.name, () => changeOne(one, row), one.kind), " "]), "actions"],
  ], rows, title);

  /** What names the ticked ones: ids, a body for each place. */
  function chosen() {
    const ids = Map.groupBy(ticked, place);
    return [...ids].map(([group, of]) => ({ ids: of.map((row) => row.id), group }));
  }

  const again = () => go(location.hash.slice(1));

  async function post(verb, bodies, more) {
    const sum = { matched: 0, changed: 0 };
    for (const one of bodies) {
      const { matched, changed } = await api.post(`${path}:${verb}`, { ...one, ...more });
      sum.matched += matched;
      sum.changed += changed;
    }
    return sum;
  }

  async function changeOne({ verb, done }, row) {
    const said = ({ changed }) => (changed ? done : "It was too late: it is not there any more");
    if (await attempt(() => post(verb, [{ ids: [row.id], group: place(row) }]), said)) again();
  }

  async function change({ verb, act, kind = "act", ask }, bodies) {
    let tried;
    try { tried = await post(verb, bodies, { dry_run: true }); } catch (error) { notice(reasons(error), "bad"); return; }
    const result = await dialog("Dry run", [
      h("p", {}, h("strong", {}, count(tried.matched)), ` ${many} match. Nothing has changed yet.`), ask ? ask() : null,
    ], { act, kind, answer: (form) => post(verb, bodies, entries(form)) });
    if (result) { notice(`${count(result.changed)} of ${count(result.matched)}`); again(); }
  }

  await more();
}
