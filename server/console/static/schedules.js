// Recurring schedules: the list, and one with a preview of its fires that follows what is typed.

import { parse, part } from "./api.js";
import { attempt, dialog, notice, reasons } from "./ask.js";
import { button, entries, field, fill, h, table } from "./dom.js";
import { away, count, instant, server, toApi } from "./format.js";

const FIRES = 20;
const KINDS = ["cron", "every", "rrule"];
const TYPING_MS = 300;
/** What the server tells of a schedule and does not take back. */
const STANDING = ["name", "state", "created_at", "changed_at", "count", "next", "last", "silent"];

export async function open(root, context) {
  const [name] = context.path;
  if (name === undefined || name === "") return openList(root, context);
  return openOne(root, context, name === "new" && context.query.name === undefined ? null : name);
}

async function openList(root, { api, every, go }) {
  const body = h("div");
  fill(root,
    h("div", { class: "row" }, h("h1", {}, "Schedules"), button("New schedule", () => go("/schedules/new"), "act"),
      h("a", { href: "/v1/schedules.ics" }, "As a calendar")),
    body);

  async function load() {
    const page = await api.get("/v1/schedules", { limit: 1_000 });
    fill(body, page.schedules.length ? drawn(page.schedules) : h("p", { class: "empty" }, "No schedules."),
      page.next ? h("p", { class: "faint" }, "There are more than 1,000; the command line lists all.") : null);
  }

  const act = (one, verb, done) => async () => {
    await attempt(() => api.post(`/v1/schedules/${part(one.name)}:${verb}`), done);
    await load();
  };

  const drawn = (rows) => table([
    ["Name", (one) => h("a", { href: `#/schedules/${part(one.name)}` }, one.name), "text"],
    ["When", (one) => h("code", {}, when(one)), "text"],
    ["Zone", (one) => one.timezone, "nowrap"],
    ["State", (one) => h("span", { class: "tag" }, one.state)],
    ["Last fire", (one) => (one.last ? instant(one.last.at ?? one.last) : "–"), "nowrap"],
    ["Next fire", (one) => [
      one.next ? h("span", { title: away(one.next.at, server.now()) }, instant(one.next.at)) : "–",
      one.silent ? h("span", { class: "tag warn", title: one.silent.why }, "silent") : null], "nowrap"],
    ["Fires", (one) => count(one.count), "number"],
    ["Actions", (one) => h("div", { class: "row" },
      one.state === "paused" ? button("Resume", act(one, "resume", `${one.name} goes on`)) : button("Pause", act(one, "pause", `${one.name} is paused`), null, { disabled: one.state !== "active" }),
      button("Trigger", act(one, "trigger", `${one.name} was sent once`)))],
  ], rows, "Schedules");

  await load();
  every(5_000, load);
}

const when = (one) => KINDS.filter((kind) => one[kind]).map((kind) => `${kind === "every" ? "every " : ""}${one[kind]}`).join("");

/** One to change, or a new one. What the form does not show of it is kept as it is. */
async function openOne(root, { api, go }, name) {
  const known = name === null ? {} : await api.get(`/v1/schedules/${part(name)}`);
  const kind = KINDS.find((one) => known[one]) ?? "cron";
  const isText = typeof (known.payload ?? "") === "string" && known.encoding !== "json";
  const said = h("p", { class: "field-error", role: "alert" }), preview = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "grid", onsubmit: (event) => { event.preventDefault(); save(); }, oninput: soon },
    field("Name", "name", { value: name ?? "", required: true, readonly: name !== null, placeholder: "nightly" }),
    field("Kind", "kind", { value: kind, options: KINDS }),
    field("Expression", "when", { value: known[kind] ?? "", required: true, placeholder: "0 2 * * *" }),
    field("Time zone", "timezone", { value: known.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone }),
    field("Topic", "topic", { value: known.topic ?? "", placeholder: "jobs/nightly" }),
    field("If the local time does not exist (DST): run", "gap", { value: known.dst?.gap ?? "after", options: ["after", "before", "skip"] }),
    field("If it exists twice (DST): run", "overlap", { value: known.dst?.overlap ?? "first", options: ["first", "second", "both"] }),
    field("Missed fires", "misfire", { value: known.misfire ?? "fire_once", options: ["fire_once", "fire_all", "skip"] }),
    field("Start", "start", { value: known.start ?? "" }),
    field("End", "end", { value: known.end ?? "" }),
    field("Maximum number of fires", "limit", { value: known.limit ?? "", inputmode: "numeric" }),
    field("Jitter", "jitter", { value: known.jitter ?? "", placeholder: "30s" }),
    field("Payload", "payload", { type: "area", wide: true, value: isText ? (known.payload ?? "") : JSON.stringify(known.payload, null, 2) }),
    field("Payload type", "as", { value: isText ? (known.encoding === "base64" ? "base64" : "text") : "JSON", options: ["text", "JSON", "base64"] }),
    h("div", { class: "wide row" }, said, h("button", { class: "act" }, "Save"),
      name === null ? null : [
        known.state === "paused" ? button("Resume", () => act("resume", "It goes on")) : button("Pause", () => act("pause", "It is paused")),
        known.next ? button("Skip the next fire", () => act("skip", "The next fire is left out")) : null,
        button("Trigger now", () => act("trigger", "It was sent once")),
        button("Delete…", remove, "danger")]));
  fill(root, h("h1", {}, name === null ? "New schedule" : name, " ", known.state ? h("span", { class: "tag" }, known.state) : null),
    silence(), form, h("h2", {}, `The next ${FIRES} fires`), preview);

  let timer = null, asked = 0;
  function soon() {
    clearTimeout(timer);
    timer = setTimeout(look, TYPING_MS);
  }

  /** The request that the form makes. Throws SyntaxError for a payload that is no JSON. */
  function wish() {
    const { name: _, kind: chosen, when: text, gap, overlap, as, payload: __, limit, start, end, ...rest } = entries(form);
    const typed = form.elements.payload.value;
    const kept = Object.fromEntries(Object.entries(known).filter(([key]) => ![...STANDING, ...KINDS, "encoding", "start", "end", "limit", "jitter", "topic"].includes(key)));
    const body = { ...kept, ...rest, [chosen]: text, dst: { gap, overlap }, payload: as === "JSON" ? parse(typed || "null") : typed };
    if (as === "base64") body.encoding = "base64";
    if (as === "JSON" && typeof body.payload === "string") body.encoding = "json";
    if (limit) body.limit = Number(limit);
    if (start) body.start = toApi(start);
    if (end) body.end = toApi(end);
    return body;
  }

  async function look() {
    const turn = ++asked;
    if (!form.elements.when.value.trim()) { fill(preview, h("p", { class: "empty" }, "Say when, and the fires are shown here.")); return; }
    try {
      const body = wish();
      const { fires } = await api.post("/v1/schedules:preview", { topic: "preview", ...body, count: FIRES, name: form.elements.name.value });
      if (turn === asked) fill(preview, shown(fires));
    } catch (error) {
      if (turn === asked) fill(preview, h("p", { class: "field-error" }, reasons(error)));
    }
  }

  async function save() {
    said.textContent = "";
    const to = form.elements.name.value.trim();
    try {
      await api.put(`/v1/schedules/${part(to)}`, wish());
      notice(`${to} is saved`);
      go(`/schedules/${part(to)}`);
    } catch (error) {
      said.textContent = reasons(error);
    }
  }

  /** Until when it sends nothing, and why, with the way out. */
  function silence() {
    return known.silent ? h("p", { class: "warn", role: "status" }, `Silent until ${instant(known.silent.until)}: ${known.silent.why}. `,
      button("Go on from now", () => act("resume", "It goes on from now", { from: "now" }))) : null;
  }

  async function act(verb, done, body) {
    await attempt(() => api.post(`/v1/schedules/${part(name)}:${verb}`, body), done);
    if (verb !== "trigger") go(`/schedules/${part(name)}`);
  }

  async function remove() {
    const gone = await dialog(`Delete ${name}?`, h("p", {}, "It fires no more; what it has put on the timeline already goes with it."), {
      act: "Delete it", kind: "danger", answer: async () => { await api.remove(`/v1/schedules/${part(name)}`); return true; },
    });
    if (gone) go("/schedules");
  }

  await look();
  return () => clearTimeout(timer);
}

const shown = (fires) => fires.length ? table([
  ["#", (one) => one.number, "number"],
  ["Local", (one) => one.local, "nowrap"],
  ["UTC", (one) => one.at, "nowrap"],
  ["Note", (one) => (one.note ? h("span", { class: "warn" }, one.note) : ""), "text"],
], fires.map((one, index) => ({ ...one, number: index + 1 })), "Next fires") : h("p", { class: "empty" }, "It does not fire any more.");
