// Recurring schedules: the list, and one with a preview of its fires that follows what is typed.

import { parse, part } from "./api.js";
import { attempt, confirm, notice, reasons } from "./ask.js";
import { button, entries, facts, field, fill, h, moment, submitted, table, tag } from "./dom.js";
import { away, both, count, instant, server, toApi } from "./format.js";

const FIRES = 20;
const SHOWN = 1_000;
const TYPING_MS = 300;
/** What a schedule follows: the API's field, what it is, an example. */
const KINDS = [
  ["cron", "cron: minute hour day month weekday", "0 2 * * *"],
  ["every", "every: one interval after the other", "90s, 15m, 2h"],
  ["rrule", "rrule: a calendar rule (RFC 5545)", "FREQ=MONTHLY;BYMONTHDAY=1"],
];
const GAPS = [["after", "run later, by the length of the gap (after)"], ["before", "run earlier, by the length of the gap (before)"], ["skip", "leave this fire out (skip)"]];
const OVERLAPS = [["first", "run the first time (first)"], ["second", "run the second time (second)"], ["both", "run both times (both)"]];
const MISSED = [["fire_once", "send one message for all of them (fire_once)"], ["fire_all", "send one message for each, up to 1,000 (fire_all)"], ["skip", "send nothing for them (skip)"]];
const STATES = { active: "good", paused: "warn", stopped: "bad" };
/** What the server tells of a schedule and does not take back. */
const STANDING = ["name", "state", "created_at", "changed_at", "count", "next", "last", "silent", "reason"];
/** What the form shows of it. All else is kept as it is. */
const SHOWN_OF_IT = ["cron", "every", "rrule", "timezone", "topic", "dst", "misfire", "start", "end", "limit", "jitter", "payload", "encoding"];

export async function open(root, context) {
  const [name] = context.path;
  if (name === undefined || name === "") return openList(root, context);
  return openOne(root, context, name === "new" && context.query.name === undefined ? null : name);
}

/** A field for whole sentences. */
const two = (label) => { label.classList.add("two"); return label; };
const kindOf = (one) => KINDS.map(([kind]) => kind).find((kind) => one[kind]) ?? "cron";
const rule = (one) => `${one.cron ? "" : `${kindOf(one)} `}${one[kindOf(one)]}`.replace(/^rrule /, "");
const messages = (one) => `${count(one.count)}${one.limit ? ` of ${count(one.limit)}` : ""}`;
const next = (one) => (one.next ? `Next fire: ${both(one.next.at)}` : "There is no further fire");

/** What can be done with one, each said and, where it can be, taken back. `done` draws what is now. */
function acts(api, done) {
  const post = (one, verb, body) => api.post(`/v1/schedules/${part(one.name)}:${verb}`, body);
  const act = async (action, said, undo = null) => { await attempt(action, said, undo && (() => act(undo, (now) => `Undone. ${next(now)}`))); await done(); };

  /** Leave the next fire out. What the page shows of it may be seconds old, so it is asked for first. */
  async function skip({ name }) {
    const one = await api.get(`/v1/schedules/${part(name)}`);
    const skipped = one.next?.at;
    await act(() => post(one, "skip"), (now) => `The fire of ${instant(skipped)} is skipped. ${next(now)}`, one.silent ? null : async () => {
      // From now on, but without those before it that were left out as well.
      let now = await post(one, "resume", { from: "now" });
      while (now.next && now.next.at < skipped) now = await post(one, "skip");
      return now;
    });
  }

  const pause = (one) => act(() => post(one, "pause"), `${one.name} is paused`, () => post(one, "resume"));
  const resume = (one) => act(() => post(one, "resume"), (now) => `${one.name} is active. ${next(now)}`, () => post(one, "pause"));
  return {
    toggle: (one) => (one.state === "paused" ? button("Resume", () => resume(one)) : button("Pause", () => pause(one), null, { disabled: one.state !== "active" })),
    skip: (one) => button("Skip next", () => attempt(() => skip(one), null), null, { disabled: !one.next, title: "Skip the next fire" }),
    trigger: (one) => button("Send now…", async () => {
      if (await confirm(`Send the message of ${one.name} now?`, "It is sent at once, in addition to the planned fires. This cannot be undone.", "Send it now")) await act(() => post(one, "trigger"), `The message of ${one.name} was sent`);
    }),
    fromNow: (one) => button("Continue from now", () => act(() => post(one, "resume", { from: "now" }), (now) => `${one.name} continues from now. ${next(now)}`)),
  };
}

async function openList(root, { api, every, go }) {
  const body = h("div"), order = { sort: "Next fire" }, act = acts(api, load);
  let shown = [];
  fill(root,
    h("div", { class: "row" }, h("h1", {}, "Schedules"), button("New schedule", () => go("/schedules/new"), "act"),
      h("a", { href: "/v1/schedules.ics" }, "Coming fires as a calendar file")),
    body);

  async function load() {
    const page = await api.get("/v1/schedules", { limit: SHOWN });
    shown = page.schedules;
    fill(body, shown.length ? drawn(shown)
      : h("p", { class: "empty" }, "No schedules yet. A schedule sends a message again and again: every night, every 15 minutes, or on the first of each month."),
    page.next ? h("p", { class: "faint" }, `The first ${count(SHOWN)} by name. The command fasti schedule ls lists all.`) : null);
  }

  const drawn = (rows) => table([
    ["Name", (one) => h("a", { href: `#/schedules/${part(one.name)}` }, one.name), "text", (one) => one.name],
    ["Rule", (one) => [h("code", {}, rule(one)), h("div", { class: "faint" }, one.timezone)], "text", rule],
    ["State", (one) => [tag(one.state, STATES[one.state]), one.silent ? [" ", h("span", { class: "tag warn", title: one.silent.why }, "silent")] : null], null, (one) => one.state],
    ["Next fire", (one) => (one.next ? [moment(one.next.at), h("div", { class: "faint" }, away(one.next.at, server.now()))] : "–"), "nowrap", (one) => one.next?.at],
    ["Last fire", (one) => moment(one.last?.at), "nowrap", (one) => one.last?.at],
    ["Messages", messages, "number", (one) => one.count],
    ["Actions", (one) => [act.toggle(one), " ", act.skip(one), " ", act.trigger(one)], "actions"],
  ], rows, "Schedules", order);

  await load();
  every(5_000, load, () => shown.length);
}

/** One to change, or a new one. */
async function openOne(root, { api, go }, name) {
  const known = name === null ? {} : await api.get(`/v1/schedules/${part(name)}`);
  const again = () => go(`/schedules/${part(name)}`), act = acts(api, again);
  const isText = typeof (known.payload ?? "") === "string" && known.encoding !== "json";
  const kept = Object.fromEntries(Object.entries(known).filter(([key]) => ![...STANDING, ...SHOWN_OF_IT].includes(key)));
  const said = h("p", { class: "field-error", role: "alert" }), preview = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "grid", onsubmit: submitted(save), oninput: soon },
    field("Name", "name", { value: name ?? "", required: true, readonly: name !== null, placeholder: "nightly" }),
    two(field("Kind of rule", "kind", { value: kindOf(known), options: KINDS.map(([kind, what]) => [kind, what]) })),
    field("Rule", "when", { value: known[kindOf(known)] ?? "", required: true }),
    field("Time zone of the rule", "timezone", { value: known.timezone ?? Intl.DateTimeFormat().resolvedOptions().timeZone, list: "zones" }),
    h("datalist", { id: "zones" }, Intl.supportedValuesOf("timeZone").map((one) => h("option", { value: one }))),
    field("Topic", "topic", { value: known.topic ?? "", placeholder: "jobs/nightly" }),
    field("Payload type", "as", { value: isText ? (known.encoding === "base64" ? "base64" : "text") : "JSON", options: ["text", "JSON", "base64"] }),
    field("Payload", "payload", { type: "area", wide: true, value: isText ? (known.payload ?? "") : JSON.stringify(known.payload, null, 2) }),
    field("First fire not before", "start", { value: known.start ?? "", placeholder: "2026-12-24 09:00" }),
    field("Last fire not after", "end", { value: known.end ?? "", placeholder: "no end" }),
    field("Maximum number of messages", "limit", { value: known.limit ?? "", inputmode: "numeric", placeholder: "no limit" }),
    field("Random delay of up to", "jitter", { value: known.jitter ?? "", placeholder: "none, or 30s" }),
    two(field("If a local time is skipped (clocks go forward)", "gap", { value: known.dst?.gap ?? "after", options: GAPS })),
    two(field("If a local time comes twice (clocks go back)", "overlap", { value: known.dst?.overlap ?? "first", options: OVERLAPS })),
    two(field("If fires were missed (server down)", "misfire", { value: known.misfire ?? "fire_once", options: MISSED })),
    Object.keys(kept).length ? h("p", { class: "wide faint" }, "Not in this form, kept as they are: ", h("code", {}, JSON.stringify(kept))) : null,
    h("div", { class: "wide row" }, h("button", { class: "act" }, "Save"), said));
  fill(root, h("h1", {}, name === null ? "New schedule" : name, " ", known.state ? tag(known.state, STATES[known.state]) : null),
    known.reason ? h("p", { class: "warn", role: "status" }, `Stopped: ${known.reason}`) : null,
    known.silent ? h("p", { class: "warn", role: "status" }, `Silent until ${both(known.silent.until)}: ${known.silent.why}. `, act.fromNow(known)) : null,
    name === null ? null : [h("div", { class: "row" }, act.toggle(known), act.skip(known), act.trigger(known), button("Delete…", remove, "danger")), facts([
      ["Next fire", known.next ? [h("a", { href: `#/messages/${known.next.id}` }, both(known.next.at)), `, ${away(known.next.at, server.now())}`] : "none"],
      ["Last fire", known.last ? both(known.last.at) : "none yet"],
      ["Messages so far", `${messages(known)}${known.next ? ", with the pending one" : ""}`],
      ["Last changed", known.changed_at && both(known.changed_at)],
    ])],
    h("div", { class: "columns" }, h("section", {}, name === null ? null : h("h2", {}, "Change it"), form), h("section", {}, h("h2", {}, `The next ${FIRES} fires`), preview)));

  let timer = null, asked = 0;
  function soon() {
    clearTimeout(timer);
    hint();
    timer = setTimeout(look, TYPING_MS);
  }

  function hint() {
    form.elements.when.placeholder = KINDS.find(([kind]) => kind === form.elements.kind.value)[2];
  }

  /** The request that the form makes. Throws SyntaxError for a payload that is no JSON. */
  function wish() {
    const { name: _, kind, when, gap, overlap, as, payload: __, limit, start, end, ...rest } = entries(form);
    const typed = form.elements.payload.value;
    const body = { ...kept, ...rest, [kind]: when, dst: { gap, overlap }, payload: as === "JSON" ? parse(typed || "null") : typed };
    if (as === "base64") body.encoding = "base64";
    if (as === "JSON" && typeof body.payload === "string") body.encoding = "json";
    if (limit) body.limit = Number(limit);
    if (start) body.start = toApi(start);
    if (end) body.end = toApi(end);
    return body;
  }

  async function look() {
    const turn = ++asked;
    if (!form.elements.when.value.trim()) { fill(preview, h("p", { class: "empty" }, "Enter a rule to see its next fires.")); return; }
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
      fill(said, reasons(error));
    }
  }

  async function remove() {
    if (!(await confirm(`Delete ${name}?`, "It sends no more messages, and its pending message is cancelled. This cannot be undone.", "Delete it"))) return;
    if (await attempt(() => api.remove(`/v1/schedules/${part(name)}`), `${name} was deleted`)) go("/schedules");
  }

  hint();
  await look();
  return () => clearTimeout(timer);
}

/** "2026-11-28T03:30:00+02:00[Europe/Bucharest]" -> "Sat 2026-11-28 03:30:00 +02:00". */
function local(text) {
  const [, date, time, offset] = /^(\S+)T([\d:.]+)([+-][\d:]+|Z)/.exec(text);
  return `${new Intl.DateTimeFormat("en", { weekday: "short", timeZone: "UTC" }).format(Date.parse(date))} ${date} ${time} ${offset}`;
}

const shown = (fires) => fires.length ? table([
  ["Local time", (one) => [local(one.local), one.note ? h("div", { class: "warn" }, one.note) : null]],
  ["UTC", (one) => one.at.replace("T", " ").replace(/(\.000)?Z$/, ""), "nowrap"],
  ["From now", (one) => away(one.at, server.now()), "nowrap"],
], fires, "Next fires") : h("p", { class: "empty" }, "There are no further fires.");
