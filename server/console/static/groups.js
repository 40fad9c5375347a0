// Groups: those who share the messages of a filter, with their members and what they have not finished.

import { part } from "./api.js";
import { attempt, dialog, notice } from "./ask.js";
import { button, facts, field, fill, h, table } from "./dom.js";
import { away, count, instant, server, span } from "./format.js";
import { History, lagLine, lagMessages, lagSeconds } from "./lag.js";
import { kept, rewind } from "./sessions.js";

const SHOWN = 200;
const KEPT = "becomes dead letters", DROPPED = "is dropped";

export async function open(root, context) {
  const [name] = context.path;
  return name ? openOne(root, context, name, context.query.filter) : openList(root, context);
}

const address = (one) => `#/groups/${part(one.name)}?${new URLSearchParams({ filter: one.filter })}`;
const key = (one) => `${one.name} ${one.filter}`;

async function openList(root, { api, every }) {
  const history = new History(), body = h("div");
  fill(root, h("h1", {}, "Groups"), body);

  async function load() {
    const page = await api.get("/v1/groups", { limit: SHOWN });
    for (const one of page.groups) history.add(key(one), one.lag_messages);
    fill(body, page.groups.length ? drawn(page.groups) : h("p", { class: "empty" }, "No groups."), page.next ? h("p", { class: "faint" }, `The first ${SHOWN} by name.`) : null);
  }

  const drawn = (rows) => table([
    ["Group", (one) => h("a", { href: address(one) }, one.name), "text"],
    ["Filter", (one) => h("code", {}, one.filter), "text"],
    ["State", (one) => h("span", { class: "tag" }, one.state)],
    ["Members", (one) => members(one), "number"],
    ["Lag", lagMessages, "number"],
    ["Time", lagSeconds, "nowrap"],
    ["History", (one) => lagLine(history, key(one))],
    ["In flight", (one) => count(one.undone.in_flight), "number"],
    ["Retries", retries, "number"],
    ["Next try", (one) => when(one.undone.next_retry_at), "nowrap"],
    ["Oldest", (one) => when(one.undone.oldest_at), "nowrap"],
    ["Delivered", (one) => count(one.delivered), "number"],
  ], rows, "Groups");

  await load();
  every(3_000, load);
}

/** What waits for its next try, with the way to it. */
const retries = (one) => one.undone.retries ? h("a", { href: `#/retries?${new URLSearchParams({ group: one.name })}` }, count(one.undone.retries)) : count(0);
const when = (time) => time === null ? "–" : h("span", { title: instant(time) }, away(time, server.now()));

const members = (one) => {
  const there = one.members.filter((each) => each.connected).length;
  return there ? count(there) : h("span", { class: "warn" }, "none");
};

async function openOne(root, { api, every, go }, name, filter) {
  const path = `/v1/groups/${part(name)}`, query = { filter }, history = new History(), body = h("div");
  fill(root, h("h1", {}, name, " ", h("code", {}, filter ?? "")), body);

  async function load() {
    const { groups } = await api.get(path, query);
    const [one] = groups;
    if (!one) { fill(body, h("p", { class: "empty" }, "There is no such group.")); return; }
    history.add(name, one.lag_messages);
    fill(body, h("div", { class: "row" },
      one.state === "paused" ? button("Resume", () => change("resume", "It goes on")) : button("Pause", () => change("pause", "It is paused")),
      button("Rewind…", () => rewind(api, path, load, query)), button("Drop…", drop, "danger")),
    facts([
      ["State", one.state],
      ["Lag", `${lagMessages(one)} messages, ${lagSeconds(one)}`],
      ["History", lagLine(history, name)],
      ["Read up to", instant(one.position.at)],
      ["In flight", count(one.undone.in_flight)],
      ["Retries", retries(one)],
      ["Next try", one.undone.next_retry_at && when(one.undone.next_retry_at)],
      ["Oldest unfinished", one.undone.oldest_at && when(one.undone.oldest_at)],
      ["Oldest unacked", one.oldest_unacked_at && instant(one.oldest_unacked_at)],
      ["Delivered", count(one.delivered)],
      ["Ack timeout", one.ack_timeout ? span(one.ack_timeout * 1_000) : "none"],
      ["Deliveries at most", one.max_attempts || "any number"],
      ["Retries after", one.backoff.map((s) => span(s * 1_000)).join(", ")],
      ["Rate", one.rate ? `${one.rate} a second` : "any"],
      ["Kept for", kept(one.expiry)],
      ["Nobody there since", one.left_at && instant(one.left_at)],
    ]), h("h2", {}, "Members"), one.members.length ? table([
      ["Client", (each) => h("a", { href: `#/sessions/${part(each.client_id)}` }, each.client_id), "text"],
      ["Connection", (each) => h("span", { class: "tag" }, each.connected ? "connected" : "away")],
      ["QoS", (each) => each.qos, "number"],
      ["In flight", (each) => count(each.in_flight), "number"],
    ], one.members, "Members") : h("p", { class: "empty" }, "Nobody."));
  }

  async function change(verb, done) {
    await attempt(() => api.post(`${path}:${verb}`, undefined, query), done);
    await attempt(load, null);
  }

  async function drop() {
    const gone = await dialog(`Drop ${name}?`, [
      h("p", {}, "Its place is forgotten; members that are there are not told."),
      field("What it has not finished", "undone", { options: [KEPT, DROPPED] }),
    ], {
      act: "Drop it", kind: "danger",
      answer: async (form) => { await api.remove(path, { ...query, undone: form.elements.undone.value === KEPT ? "dead" : "drop" }); return true; },
    });
    if (gone) { notice(`${name} is forgotten`); go("/groups"); }
  }

  await load();
  every(2_000, load);
}
