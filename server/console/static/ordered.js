// Ordering keys of a group or endpoint that orders: those that are behind or in trouble, the one with the most waiting
// messages first. Each can be held, and let go on.

import { part } from "./api.js";
import { attempt, dialog } from "./ask.js";
import { button, entries, field, fill, h, moment, table, tag } from "./dom.js";
import { count } from "./format.js";

const PAGE = 100;
const HELD = { dead: ["held by a dead letter", "bad"], hand: ["held", "warn"] };

/** The list: { node, load }. `place()`: as it stands; `changed`: called when a key was held or released. */
export function orderedKeys(api, place, changed) {
  const node = h("div");

  async function load() {
    const { path, query, one } = place();
    if (!one.order) return fill(node);
    const page = await api.get(`${path}/keys`, { ...query, limit: PAGE });
    return fill(node, h("h2", {}, "Ordering keys"),
      page.is_standing ? h("p", { class: "bad", role: "alert" }, "limits.ordering_keys is reached: unread messages of further keys wait until some of these are done.") : null,
      h("div", { class: "row" }, button("Hold a key…", hold), h("span", { class: "faint" }, page.blocked ? `${count(page.blocked)} behind or in trouble, ${count(page.held)} of them held${page.next ? `; the first ${count(PAGE)} are shown` : ""}` : "None is behind or in trouble.")),
      page.keys.length ? table([
        ["Key", (row) => h("code", {}, row.key), "text"],
        ["State", (row) => tag(...state(row)), "nowrap"],
        ["Waiting behind", (row) => `${count(row.lag)}${row.lag_is_exact ? "" : " or more"}`, "number"],
        ["Next try", (row) => moment(row.retry_at), "nowrap"],
        ["Oldest", (row) => moment(row.oldest_at), "nowrap"],
        ["Message", (row) => row.id ? h("a", { class: "mono", href: `#/messages/${row.id}` }, row.id) : null, "text"],
        ["Actions", (row) => button(row.held ? "Release" : "Hold", () => turn(row.key, row.held ? "release" : "hold")), "actions"],
      ], page.keys, "Ordering keys") : null);
  }

  const state = ({ held, retry_at: retryAt, in_flight: inFlight }) => HELD[held] ?? (retryAt ? ["waits for its next try", "warn"] : inFlight ? ["in flight", "good"] : ["waits", null]);

  async function turn(key, verb) {
    const { path, query } = place(), back = verb === "hold" ? "release" : "hold";
    await attempt(() => api.post(`${path}/keys/${part(key)}:${verb}`, undefined, query), verb === "hold" ? `${key} is held: nothing more of it is delivered` : `${key} goes on`, () => turn(key, back));
    await changed();
  }

  async function hold() {
    const key = await dialog("Hold an ordering key", [
      h("p", {}, "What is in flight may be finished. Nothing more of the key is delivered until it is released."),
      field("Ordering key", "key", { required: true }),
    ], { act: "Hold", answer: (form) => entries(form).key });
    if (key) await turn(key, "hold");
  }

  return { node, load };
}
