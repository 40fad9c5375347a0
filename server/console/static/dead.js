// Dead letters: what was given up, why, and the two ways on: sent again to who gave it up, or forgotten.

import { attempt, dialog, notice } from "./ask.js";
import { button, entries, field, fill, h, table } from "./dom.js";
import { count, instant } from "./format.js";
import { glimpse } from "./payload.js";

const PAGE = 100;

export async function open(root, { api, query, go }) {
  const form = h("form", { class: "row", role: "search", onsubmit: (event) => { event.preventDefault(); go(`/dead?${new URLSearchParams(entries(form))}`); } },
    field("Group or client", "group", { value: query.group }), field("Topic filter", "topic", { value: query.topic }),
    field("Part of the reason", "reason", { value: query.reason }), h("button", { class: "act" }, "Search"));
  const body = h("div");
  fill(root, h("h1", {}, "Dead letters"), form, body);
  const rows = [];
  let cursor = null;

  async function more() {
    const page = await api.get("/v1/dead", { ...query, limit: PAGE, cursor });
    rows.push(...page.messages);
    cursor = page.next;
    const filter = { group: query.group, topic: query.topic };
    fill(body,
      (query.group || query.topic) && !query.reason && rows.length ? h("div", { class: "row" },
        button("Send all of these again…", () => many("requeue", filter)), button("Drop all of these…", () => many("drop", filter), "danger")) : null,
      rows.length ? drawn() : h("p", { class: "empty" }, "No dead letters."),
      cursor ? button("More", () => attempt(more, null)) : null);
  }

  const one = (verb, letter, done) => async () => {
    if (await attempt(() => api.post(`/v1/dead:${verb}`, { ids: [letter.id], group: letter.subscription ?? letter.group }), done)) go(location.hash.slice(1));
  };

  const drawn = () => table([
    ["Died", (letter) => instant(letter.died_at), "nowrap"],
    ["Of", (letter) => letter.group, "text"],
    ["Topic", (letter) => letter.topic, "text"],
    ["Attempts", (letter) => count(letter.attempts), "number"],
    ["Reason", (letter) => letter.reason, "text"],
    ["Payload", (letter) => h("code", {}, glimpse(letter, 40)), "text"],
    ["Id", (letter) => h("a", { class: "mono", href: `#/messages/${letter.id}` }, letter.id), "nowrap"],
    ["Actions", (letter) => h("div", { class: "row" }, button("Again", one("requeue", letter, "It is sent again")), button("Drop", one("drop", letter, "It is dropped"), "danger"))],
  ], rows, "Dead letters");

  async function many(verb, wish) {
    const filter = Object.fromEntries(Object.entries(wish).filter(([, value]) => value));
    let tried;
    try { tried = await api.post(`/v1/dead:${verb}`, { filter, dry_run: true }); } catch (error) { notice(error.message, "bad"); return; }
    const result = await dialog("Dry run", h("p", {}, h("strong", {}, count(tried.matched)), ` dead letters match. Nothing has changed yet.`), {
      act: verb === "drop" ? "Drop them" : "Send them again", kind: verb === "drop" ? "danger" : "act", answer: () => api.post(`/v1/dead:${verb}`, { filter }),
    });
    if (result) { notice(`${count(result.changed)} of ${count(result.matched)}`); go(location.hash.slice(1)); }
  }

  await more();
}
