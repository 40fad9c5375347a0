// Messages: found by topic, words, due, state, header or payload; one looked at whole; many cancelled or shifted.

import { denied, part } from "./api.js";
import { notice, reasons } from "./ask.js";
import { changeAll, changeTicked } from "./bulk.js";
import { button, entries, field, fill, h, moment, submitted, table } from "./dom.js";
import { count, instant, server } from "./format.js";
import { openMessage, stateTag } from "./message.js";
import { openNew } from "./new_message.js";
import { glimpse } from "./payload.js";
import { backward, fitsOf, forward, isFilter } from "./seek.js";
import { msOf } from "./when.js";

const KEY_MOST = 256;
/** Rows shown at once; of two lists, so that the second one is near. */
const SHOWN = 100, SHOWN_OF_TWO = 20, SEARCHED = 1_000;
/** What one search reads at most before it asks whether to go on. */
const READ_MOST = 20_000, READ_MS = 60_000, COUNT_MS = 5_000;
const STATES = ["pending", "dispatched", "cancelled", "expired", "withheld", "all"];

export async function open(root, context) {
  const [id] = context.path;
  if (id === "new") return openNew(root, context);
  if (id) return openMessage(root, context, id);
  return openList(root, context);
}

async function openList(root, { api, query, go }) {
  const { q, topic, header, text, schedule } = query;
  const state = query.state ?? (q ? "all" : "pending");
  const more = [field("Header", "header", { value: header, placeholder: "tenant=blue" }), field("Text in the payload", "text", { value: text }),
    field("Schedule", "schedule", { value: schedule, placeholder: "nightly" })];
  const form = h("form", { role: "search", "aria-label": "Messages", onsubmit: submitted(() => go(`/messages?${new URLSearchParams(entries(form))}`)) },
    h("div", { class: "row" },
      field("Topic, words, id or key", "q", { type: "search", value: q ?? topic, placeholder: "orders/+/bill, or: order 17", size: "32" }),
      field("State", "state", { value: state, options: STATES }),
      field("Due from", "due_from", { value: query.due_from, placeholder: "2026-12-24 09:00" }),
      field("Due to", "due_to", { value: query.due_to, placeholder: "2026-12-25" }),
      h("button", { class: "act" }, "Search")),
    h("details", { open: Boolean(header || text || schedule) }, h("summary", {}, "Header, payload, schedule"), h("div", { class: "row" }, more)));
  const lists = h("div");
  fill(root, h("div", { class: "row" }, h("h1", {}, "Messages"), h("a", { class: "button act", href: "#/messages/new" }, "New message")), form, lists);

  const id = q && isName(q) ? await idOf(api, q) : null;
  if (id) { if (root.isConnected) location.replace(`#/messages/${part(id)}`); return undefined; }
  const ends = new AbortController();
  try {
    await find();
  } catch (error) {
    ends.abort();
    if (error.status !== 422) throw error;
    fill(lists, h("p", { class: "bad", role: "alert" }, reasons(error)));
  }
  return () => ends.abort();

  async function find() {
    const [from, to] = ["due_from", "due_to"].map((name) => query[name] && time(name, query[name]));
    const { topic: chosen = topic, words } = asked(q);
    const filter = Object.fromEntries(Object.entries({ topic: chosen, due_from: from, due_to: to }).filter(([, value]) => value !== undefined));
    const fits = fitsOf({ words, header, text, schedule });
    const wish = { topic: chosen, state, limit: fits ? SEARCHED : SHOWN };
    const parts = spans(state, from, to);
    const shown = parts.map(([title, read, span]) => list({
      api, title, step: parts.length > 1 ? SHOWN_OF_TWO : SHOWN, fits, pages: read(api, { ...wish, ...span }, ends.signal), signal: ends.signal, hasPending: read === forward && ["pending", "all"].includes(state),
      count: state === "pending" && !fits ? { ...wish, due_from: from, due_to: to, limit: 1, count: true } : null,
      filter: fits || !Object.keys(filter).length ? null : filter, again: () => go(location.hash.slice(1)),
    }));
    fill(lists, shown.map((one) => one.root));
    await Promise.all(shown.map((one) => one.begin()));
  }
}

/** One that may be an id or a key; a filter is neither. */
const isName = (text) => !/[+#\s]/.test(text);

/** What a text asks for: the first word that is a filter, or a part of the tree of topics, selects by topic. */
function asked(text = "") {
  const words = text.split(/\s+/).filter(Boolean), at = words.findIndex((word) => /[+#/]/.test(word) && isFilter(word));
  const [topic] = at < 0 ? [] : words.splice(at, 1);
  return { topic: topic && !/[+#]/.test(topic) ? `${topic}/#` : topic, words };
}

/** The id of the message with this id or key, or null. */
async function idOf(api, text) {
  const under = text.length > KEY_MOST ? null : await api.get("/v1/messages", { key: text, state: "all" });
  if (under?.messages.length || !/^[0-9a-f]{32}$/.test(text)) return under?.messages[0]?.id ?? null;
  return (await api.get(`/v1/messages/${text}`).catch(denied))?.id ?? null;
}

function time(name, text) {
  const ms = msOf(text);
  if (Number.isNaN(ms)) throw Object.assign(new Error(`${name === "due_from" ? "Due from" : "Due to"}: "${text}" is not a time such as 2026-12-24 09:00`), { status: 422 });
  return ms;
}

/** What is read for a state: pending messages from now on, what is behind now from its newest on. */
function spans(state, from, to) {
  const now = server.now();
  if (state === "pending") return [["Pending messages, the next first", forward, { from, to }]];
  if (state !== "all" && state !== "cancelled") return [["Newest first", backward, { from, to, now }]];
  return [
    to === undefined || to > now ? ["Due from now on, the next first", forward, { from: Math.max(from ?? 0, Math.ceil(now)), to }] : null,
    from === undefined || from < now ? ["Due before now, newest first", backward, { from, to: Math.min(to ?? now, Math.ceil(now)), now }] : null,
  ].filter(Boolean);
}

/** One list: what its pages have and `fits`, as far as it has been read. */
function list({ api, title, step: most, fits, pages, signal, hasPending, count: counted, filter, again }) {
  const found = [], ticked = new Set(), order = {};
  const tools = h("div", { class: "row" }), said = h("span", { class: "faint", role: "status" }), foot = h("div", { class: "row" }), body = h("div");
  let read = 0, upTo = null, wanted = most, total = null, isEnd = false, isCut = false, isReading = false, isStopped = false;

  async function step() {
    const { done, value } = await pages.next();
    isEnd = done;
    if (done) return;
    read += value.rows.length;
    upTo = value.upTo ?? upTo;
    isCut ||= value.isCut ?? false;
    for (const row of value.rows) if (!fits || fits(row)) found.push(row);
  }

  /** Until there is enough to show. */
  async function run() {
    const first = read, since = performance.now();
    isReading = true;
    isStopped = false;
    draw();
    try {
      while (found.length < wanted && !isEnd && !isStopped && read - first < READ_MOST && performance.now() - since < READ_MS) {
        await step();
        draw();
      }
    } catch (error) {
      isEnd = true;
      if (!signal.aborted) notice(reasons(error), "bad");
    }
    isReading = false;
    if (!signal.aborted) draw();
  }

  /** The first page is waited for: if it cannot be read, the page says so. */
  async function begin() {
    if (counted) countAll();
    await step();
    run();
  }

  async function countAll() {
    try {
      total = (await api.call("GET", "/v1/messages", { query: counted, signal: AbortSignal.any([signal, AbortSignal.timeout(COUNT_MS)]) })).count;
    } catch { return; }  // it is a figure more, not what was asked for
    draw();
  }

  function draw() {
    const rows = found.slice(0, wanted);
    const where = upTo !== null && !isEnd ? `, up to ${instant(Math.round(upTo / 1_000) * 1_000)}` : "";
    const shown = `${count(rows.length)}${total === null ? "" : ` of ${count(total)}`} shown${isReading ? where : ""}`;
    const figures = fits ? `${count(read)} read, ${count(found.length)} found${where}` : shown;
    const stand = isReading ? "" : isEnd ? (fits ? ": that is all" : "") : isStopped ? ": stopped" : found.length < wanted ? `: a search reads ${count(READ_MOST)} messages or ${READ_MS / 1_000} s` : "";
    said.textContent = `${figures}${stand}${isCut ? "; one second has too many to show" : ""}`;
    fill(body, rows.length ? drawn(rows) : isReading ? null : empty());
    fill(foot, isReading ? [h("progress", { "aria-label": "Searching" }), button("Stop", () => { isStopped = true; })]
      : isEnd && found.length <= wanted ? null : button(found.length > wanted || !fits ? "More" : "Continue", () => { if (found.length >= wanted) wanted += most; run(); }));
    drawTools(rows);
  }

  const empty = () => h("p", { class: "empty" }, !isEnd ? "None so far. " : fits ? "Nothing found. Words are looked for in topics, payloads, headers and names of schedules." : "No messages. ",
    isEnd && !fits && !filter && hasPending ? [h("a", { href: "#/messages/new" }, "Schedule one"), ", or let a program send them by HTTP or MQTT."] : null);

  function drawTools(rows) {
    const can = rows.filter((row) => row.state === "pending");
    if (!hasPending || !can.length) { fill(tools); return; }
    const act = async (change) => { if (await change) again(); };
    const chosen = can.filter((row) => ticked.has(row)), isAll = chosen.length === can.length;
    fill(tools,
      button(isAll ? "Select none" : "Select all", () => { for (const row of can) isAll ? ticked.delete(row) : ticked.add(row); draw(); }),
      chosen.length ? [button("Cancel selected…", () => act(changeTicked(api, "cancel", chosen, again)), "danger"), button("Shift selected…", () => act(changeTicked(api, "reschedule", chosen, again)))] : null,
      filter ? [button("Cancel all matching…", () => act(changeAll(api, "cancel", filter)), "danger"), button("Shift all matching…", () => act(changeAll(api, "reschedule", filter)))] : null);
  }

  const tick = (row) => (row.state === "pending" ? h("input", { type: "checkbox", checked: ticked.has(row), "aria-label": `Select ${row.topic}, ${row.id}`, onchange: (event) => { event.target.checked ? ticked.add(row) : ticked.delete(row); drawTools(found.slice(0, wanted)); } }) : null);
  const drawn = (rows) => table([
    ...(hasPending ? [["Select", tick]] : []),
    ["Due", (one) => moment(one.deliver_at), "nowrap", (one) => one.deliver_at],
    ["Topic", (one) => h("a", { href: `#/messages/${one.id}` }, one.topic), "text", (one) => one.topic],
    ["State", (one) => stateTag(one.state), "nowrap", (one) => one.state],
    ["Payload", (one) => h("code", {}, glimpse(one)), "text"],
  ], rows, title, order);

  return { root: h("section", { class: "found" }, h("div", { class: "row" }, h("h2", {}, title), said, tools), body, foot), begin };
}
