// Sessions: who listens to what, how far behind, and the two things that can be done: set back, forgotten.

import { part } from "./api.js";
import { attempt, dialog, notice } from "./ask.js";
import { button, entries, facts, field, fill, h, table } from "./dom.js";
import { count, instant, span } from "./format.js";
import { History, lagLine, lagMessages, lagSeconds } from "./lag.js";

const SHOWN = 200;

export async function open(root, context) {
  const [id] = context.path;
  return id ? openOne(root, context, id) : openList(root, context);
}

async function openList(root, { api, every, go }) {
  const history = new History(), body = h("div");
  const form = h("form", { class: "row", role: "search", onsubmit: (event) => { event.preventDefault(); const { client } = entries(form); if (client) go(`/sessions/${part(client)}`); } },
    field("Client", "client"), h("button", {}, "Look up"));
  fill(root, h("h1", {}, "Sessions"), h("p", { class: "faint" }, "Groups, which share their work, have a page of their own."), form, body);

  async function load() {
    const { sessions: rows, next } = await api.get("/v1/sessions", { limit: SHOWN });
    for (const one of rows) history.add(one.client_id, one.lag_messages);
    fill(body, rows.length ? drawn(rows) : h("p", { class: "empty" }, "No sessions."), next ? h("p", { class: "faint" }, `The first ${SHOWN} by name.`) : null);
  }

  const drawn = (rows) => table([
    ["Client", (one) => h("a", { href: `#/sessions/${part(one.client_id)}` }, one.client_id), "text"],
    ["Connection", (one) => h("span", { class: "tag" }, one.connected ? "connected" : "away"), "nowrap"],
    ["Filters", (one) => h("code", {}, one.subscriptions.slice(0, 3).map((each) => each.filter).join(" "), one.subscriptions.length > 3 ? ` +${one.subscriptions.length - 3}` : ""), "text"],
    ["Lag", lagMessages, "number"],
    ["Time", lagSeconds, "nowrap"],
    ["History", (one) => lagLine(history, one.client_id)],
    ["In flight", (one) => count(one.in_flight), "number"],
    ["Delivered", (one) => count(one.delivered), "number"],
  ], rows, "Sessions");

  await load();
  every(3_000, load);
}

/** How long something stays with nobody there. */
export const kept = (expiry) => expiry === "never" ? "until it is deleted" : expiry ? `${span(expiry * 1_000)} without a connection` : "not at all";

async function openOne(root, { api, every, go }, id) {
  const path = `/v1/sessions/${part(id)}`, history = new History();
  const body = h("div");
  fill(root, h("h1", {}, id),
    h("div", { class: "row" }, button("Rewind…", () => rewind(api, path, load)), button("Drop…", drop, "danger")), body);

  async function load() {
    const one = await api.get(path);
    history.add(id, one.lag_messages);
    fill(body, facts([
      ["Connection", one.connected ? `connected${one.connected_at ? ` since ${instant(one.connected_at)}` : ""}` : `away${one.left_at ? ` since ${instant(one.left_at)}` : ""}`],
      ["Kept for", kept(one.expiry_s)],
      ["Read up to", instant(one.read_position.at)],
      ["Lag", `${lagMessages(one)} messages, ${lagSeconds(one)}`],
      ["History", lagLine(history, id)],
      ["In flight", count(one.in_flight)],
      ["Oldest unacked", one.oldest_unacked_at && instant(one.oldest_unacked_at)],
      ["Delivered", count(one.delivered)],
    ]), h("h2", {}, "Subscriptions"), table([
      ["Filter", (each) => h("code", {}, each.filter), "text"],
      ["QoS", (each) => each.qos, "number"],
      ["Since", (each) => instant(each.since), "nowrap"],
    ], one.subscriptions, "Subscriptions"));
  }

  async function drop() {
    const gone = await dialog(`Drop ${id}?`, h("p", {}, "Its connection is closed, and its place and what it has not acked are forgotten."), {
      act: "Drop it", kind: "danger", answer: async () => { await api.remove(path); return true; },
    });
    if (gone) { notice(`${id} is forgotten`); go("/sessions"); }
  }

  await load();
  every(2_000, load);
}

/** Ask how far back, and set it there. */
export async function rewind(api, path, load, query = {}) {
  const set = await dialog("Rewind", [
    h("p", {}, "Everything from there on is delivered again."),
    field("To a time, or back by", "from", { required: true, placeholder: "PT1H, or 2026-12-24T09:00:00Z" }),
  ], { act: "Rewind it", answer: async (form) => { await api.post(`${path}:replay`, { from: form.elements.from.value.trim() }, query); return true; } });
  if (set) { notice("It reads on from there"); await attempt(load, null); }
}
