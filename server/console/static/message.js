// One message whole: what has happened to it, and what can still be done with it.

import { answer, denied, part } from "./api.js";
import { attempt, confirm, dialog, notice, reasons } from "./ask.js";
import { copy, curl } from "./copy.js";
import { button, entries, facts, fill, h, tag } from "./dom.js";
import { away, both, count, instant, span, server } from "./format.js";
import { payload } from "./payload.js";
import { story } from "./story.js";
import { whenFields, whenOf } from "./when.js";

const REFRESH_MS = 3_000;
const KINDS = { expired: "warn", cancelled: "warn" };
export const stateTag = (state) => tag(state, KINDS[state]);
const OUTCOME_KINDS = { failed: "bad", withheld: "warn", retrying: "warn", dropped: "warn", done: "good", unclaimed: "warn" };
/** What may still change by itself. */
const UNDONE = ["in_flight", "withheld", "waiting", "retry"];

export async function openMessage(root, { api, every }, id) {
  const path = `/v1/messages/${part(id)}`;
  let etag = null, shown = null, isMoving = true;

  async function load() {
    const [response, place, why] = await Promise.all([
      api.fetch("GET", path),
      api.get(`${path}/explain`).catch(denied),
      api.get(`${path}/why`).catch(denied),
    ]);
    etag = response.headers.get("ETag");
    const text = await response.text();
    // Drawn anew only if something is: its reader may have chosen another view of the payload.
    const now = text + JSON.stringify([place, why]);
    if (now !== shown) draw(answer(text), place, why);
    shown = now;
  }

  function draw(message, place, why) {
    const isPending = ["pending", "withheld"].includes(message.state);
    isMoving = isPending || (message.deliveries ?? []).some((one) => UNDONE.includes(one.state));
    fill(root,
      h("h1", {}, message.topic, " ", h("span", { id: "state" }, stateTag(message.state)), " ",
        message.state === "dispatched" ? h("span", { id: "outcome" }, tag(`outcome: ${message.outcome}`, OUTCOME_KINDS[message.outcome])) : null),
      h("div", { class: "row" },
        isPending ? [button("Move…", () => move(message)), button("Send now…", now), button("Cancel…", cancel, "danger")] : null,
        button("Copy id", () => copy(message.id, "the id")),
        message.payload === undefined ? null : button("Copy as curl", () => copy(curl("/v1/messages", again(message), api.key !== null), "a curl command that schedules it again")),
        button("Reload", () => attempt(load, null))),
      h("div", { class: "columns" },
        h("section", { class: "story" }, h("h2", {}, "History"), story(message, place, { post, change })),
        why ? h("section", { id: "why" }, h("h2", {}, "Why"), h("ul", {}, why.sentences.map((one) => h("li", {}, one))), why.waits_for ? h("p", {}, `It waits for ${why.waits_for}.`) : null) : null,
        h("section", {}, h("h2", {}, "Payload"), payload(message), headers(message.headers)),
        h("section", {}, h("h2", {}, "Message"), told(message)),
        place ? h("section", {}, h("h2", {}, "Where it is stored"), where(place)) : null));
  }

  /** An act on its retry or dead letter at one place. */
  const post = (acts, group, done) => change(async () => {
    const { changed } = await api.post(acts, { ids: [id], group });
    if (!changed) throw new Error("Too late: it has changed meanwhile");
  }, done);

  async function cancel() {
    if (await confirm("Cancel this message?", "Nobody will get it. This cannot be undone.", "Cancel it")) await change(() => api.remove(path), "Cancelled: nobody will get it");
  }

  async function now() {
    if (await confirm("Send it now?", "It is sent at once. After that it cannot be moved or cancelled.", "Send it")) await change(() => api.patch(path, { deliver_in: 0 }), "It was sent");
  }

  async function move({ deliver_at: before, local }) {
    const moveTo = (body, tag) => api.fetch("PATCH", path, { body, headers: tag ? { "If-Match": tag } : {} });
    const back = async (tag) => {
      if (Date.parse(before) <= server.now()) throw new Error("It is too late to move it back: its former time has passed");
      await moveTo({ deliver_at: local ?? before }, tag);
    };
    await dialog("Move", [h("p", { class: "faint" }, `It is due ${both(before)}.`), whenFields()], {
      act: "Move it",
      answer: async (form) => {
        const moved = await moveTo(whenOf(entries(form)), etag), tag = moved.headers.get("ETag");
        notice(`Moved to ${instant((await moved.json()).deliver_at)}`, "good", () => change(() => back(tag), `Moved back to ${instant(before)}`));
        await load();
        return true;
      },
    });
  }

  /** Too late is an answer like another: it is said as the API says it, and the page shows how it stands. */
  async function change(action, done) {
    try {
      await action();
      notice(done);
    } catch (error) {
      notice(reasons(error), "bad");
    }
    if (root.isConnected) await attempt(load, null);
  }

  await load();
  every(REFRESH_MS, async () => { if (isMoving && document.querySelector("dialog") === null) await load(); });
}

/** The request that schedules the same once more: at its time if that is ahead, else at once. The key stays with the first. */
function again({ topic, payload: what, encoding, deliver_at, state, local, ...message }) {
  const kept = Object.fromEntries(["deliver_to", "qos", "retain", "late", "expires_in", "headers", "content_type"].map((name) => [name, message[name]]));
  const isTold = encoding === "base64" || (encoding === "json" && typeof what === "string");
  return {
    topic: topic.startsWith("$deliver/") ? undefined : topic, payload: what, encoding: isTold ? encoding : undefined, ...kept,
    deliver_at: state === "pending" ? local ?? deliver_at : undefined,
  };
}

function told(message) {
  return facts([
    ["Id", h("code", {}, message.id)],
    ["Due", `${both(message.deliver_at)}, ${away(message.deliver_at, server.now())}`],
    ["Requested time", message.local],
    ["Publisher", message.publisher],
    ["Schedule", message.schedule && h("a", { href: `#/schedules/${part(message.schedule)}` }, message.schedule)],
    ["Posted to", message.deliver_to],
    ["QoS", message.qos],
    ["Retained", message.retain ? "yes: new subscribers of its topic get it" : null],
    ["Expires", message.expires_in === undefined ? null : `${span(message.expires_in * 1_000)} after it is due`],
    ["If late", message.late === "drop" ? "it is dropped" : message.late],
    ["Content type", message.content_type],
  ]);
}

function headers(given) {
  const pairs = Object.entries(given ?? {});
  return pairs.length ? [h("h2", {}, "Headers"), facts(pairs)] : null;
}

function where(place) {
  return facts([
    ["Position", h("code", {}, `${instant(place.position.at)} #${place.position.seq}`)],
    ["Slice", place.slice && h("a", { href: `#/slices/${part(place.slice)}` }, instant(place.slice))],
    ["Shard", place.shard === undefined ? null : `${count(place.shard)} (${place.structure})${place.borrowed ? ", borrowed" : ""}`],
    ["In memory", place.in_wheel ? "yes" : place.enters_ram_at ? `from ${instant(place.enters_ram_at)}` : "no"],
    ["Held", place.held ? "yes: it waits because the clock was set back" : null],
  ]);
}
