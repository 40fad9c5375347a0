// Messages: found by topic, due, state, id or key; one looked at whole; many cancelled or shifted, after a dry run.

import { part } from "./api.js";
import { dialog, notice, reasons } from "./ask.js";
import { button, entries, field, fill, h, table } from "./dom.js";
import { away, count, instant, server, toApi } from "./format.js";
import { openMessage } from "./message.js";
import { openNew } from "./new_message.js";
import { glimpse } from "./payload.js";

const PAGE = 100;
const STATES = ["pending", "dispatched", "cancelled", "expired", "all"];

export async function open(root, context) {
  const [id] = context.path;
  if (id === "new") return openNew(root, context);
  if (id) return openMessage(root, context, id);
  return openList(root, context);
}

async function openList(root, { api, query, go }) {
  const found = h("div");
  const form = h("form", { class: "row", role: "search", onsubmit: (event) => { event.preventDefault(); find(); } },
    field("Topic filter", "topic", { value: query.topic, placeholder: "orders/+/remind" }),
    field("Due from", "due_from", { value: query.due_from, placeholder: "2026-12-24 09:00" }),
    field("Due to", "due_to", { value: query.due_to, placeholder: "2026-12-25" }),
    field("State", "state", { value: query.state ?? "pending", options: STATES }),
    h("button", { class: "act" }, "Search"));
  const one = h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); lookUp(entries(one)); } },
    field("Id or key of one message", "one", { value: "" }), h("button", {}, "Look up"));
  fill(root,
    h("div", { class: "row" }, h("h1", {}, "Messages"), button("New message", () => go("/messages/new"), "act")),
    form, one, found);

  const find = () => go(`/messages?${new URLSearchParams(entries(form))}`);

  /** A key may look like an id. */
  async function idOf(text) {
    if (/^[0-9a-f]{32}$/.test(text)) {
      try { return (await api.get(`/v1/messages/${text}`)).id; } catch (error) { if (error.status !== 404) throw error; }
    }
    return (await api.get(`/v1/messages/by-key/${part(text)}`)).id;
  }

  async function lookUp({ one: text }) {
    if (!text) return;
    try {
      go(`/messages/${part(await idOf(text))}`);
    } catch (error) {
      notice(reasons(error), "bad");
    }
  }

  if (query.q) {
    try { location.replace(`#/messages/${part(await idOf(query.q))}`); return; } catch (error) { if (error.status !== 404) throw error; }
    query.topic = form.elements.topic.value = query.q;
  }
  const wish = { topic: query.topic, due_from: query.due_from && toApi(query.due_from), due_to: query.due_to && toApi(query.due_to), state: query.state ?? "pending" };
  await list(found, api, wish, go);
}

/** The pages of the list, one below the other. */
async function list(root, api, wish, go) {
  const rows = [];
  let cursor = null;
  const body = h("div"), foot = h("div", { class: "row" });
  const isBulk = wish.state === "pending" && (wish.topic || wish.due_from || wish.due_to);
  const tools = isBulk ? h("div", { class: "row" },
    button("Cancel all of these…", () => bulk(api, wish, "cancel", go), "danger"),
    button("Shift all of these…", () => bulk(api, wish, "reschedule", go))) : null;
  fill(root, tools, body, foot);

  async function more() {
    const page = await api.get("/v1/messages", { ...wish, limit: PAGE, cursor });
    rows.push(...page.messages);
    cursor = page.next;
    fill(body, rows.length ? drawn() : h("p", { class: "empty" }, cursor ? "None so far." : "No messages."));
    fill(foot, h("span", { class: "faint" }, `${count(rows.length)} shown`), cursor ? button("More", () => more().catch((error) => notice(reasons(error), "bad"))) : null);
  }

  const drawn = () => table([
    ["Due", (one) => h("span", { title: away(one.deliver_at, server.now()) }, instant(one.deliver_at)), "nowrap"],
    ["Topic", (one) => one.topic, "text"],
    ["State", (one) => h("span", { class: "tag" }, one.state), "nowrap"],
    ["Payload", (one) => h("code", {}, glimpse(one)), "text"],
    ["Id", (one) => h("a", { class: "mono", href: `#/messages/${one.id}` }, one.id), "nowrap"],
  ], rows, "Messages");

  await more();
}

/** Cancel or shift what the filter selects: first what it would be, then it. */
async function bulk(api, { topic, due_from, due_to }, verb, go) {
  const filter = Object.fromEntries(Object.entries({ topic, due_from, due_to }).filter(([, value]) => value));
  const isShift = verb === "reschedule";
  let body = { filter };
  const tried = await dialog(isShift ? "Shift many messages" : "Cancel many messages", [
    h("p", {}, Object.entries(filter).map(([name, value]) => h("span", {}, `${name} `, h("code", {}, value), " "))),
    isShift ? field("By", "shift", { placeholder: "PT2H, or -15m back", required: true }) : null,
  ], {
    act: "Dry run",
    answer: (form) => {
      body = isShift ? { filter, shift: form.elements.shift.value.trim() } : { filter };
      return api.post(`/v1/messages:${verb}`, { ...body, dry_run: true });
    },
  });
  if (!tried) return;
  const what = isShift ? `be moved by ${body.shift}` : "be cancelled";
  const result = await dialog("Dry run", [
    h("p", {}, h("strong", {}, count(tried.matched)), ` pending messages match and would ${what}. Nothing has changed yet.`),
    h("p", { class: "faint" }, "Messages that come in from now on are left alone."),
  ], { act: isShift ? "Shift them" : "Cancel them", kind: isShift ? "act" : "danger", answer: () => api.post(`/v1/messages:${verb}`, { ...body, as_of: tried.as_of }) });
  if (!result) return;
  const late = result.matched - result.changed;
  notice(`${count(result.changed)} of ${count(result.matched)} ${isShift ? "moved" : "cancelled"}${late ? `; for ${count(late)} it was too late` : ""}`);
  go(location.hash.slice(1));
}
