// What has happened to a message, as a line of time: scheduled, due, sent; then each place that gets it, with the tries that
// failed, the next one, and what can be done about it there.

import { part } from "./api.js";
import { confirm } from "./ask.js";
import { button, h, moment, tag } from "./dom.js";
import { away, count, instant, server, span } from "./format.js";
import { addressOf, ENDPOINT, placeOf } from "./history.js";

/** What became of a try, by the API's word. */
export const OUTCOMES = { failed: "failed", lapsed: "no answer before its lease ended", lost: "the connection or the server was lost", returned: "returned too often" };
const STATES = { in_flight: ["in flight"], withheld: ["withheld", "warn"], waiting: ["waiting"], retry: ["waits for its next try", "warn"], dead: ["dead letter", "bad"], dropped: ["dropped", "warn"], done: ["done", "good"] };

/** `place`: as explain tells it, or null. `acts`: { post(path, group, done), change }. */
export function story(message, place, acts) {
  // An id begins with the time that its message was first put at.
  const first = parseInt(message.id.slice(0, 12), 16);
  const isMoved = place !== null && first !== Date.parse(place.position.at);
  const isAhead = message.state === "pending", late = message.dispatched_at ? Date.parse(message.dispatched_at) - Date.parse(message.deliver_at) : 0;
  const by = message.schedule ? ["by the schedule ", h("a", { href: `#/schedules/${part(message.schedule)}` }, message.schedule)] : message.publisher ? `by ${message.publisher}` : null;
  return h("ol", {},
    by && event(null, ["Scheduled ", by]),
    isMoved ? event(first, "First due time, before it was moved") : null,
    event(message.deliver_at, isAhead ? ["Due ", away(message.deliver_at, server.now())] : "Due", isAhead ? "ahead" : null),
    message.cancelled_at ? event(message.cancelled_at, "Cancelled: nobody gets it", "warn") : null,
    message.state === "withheld" ? event(null, withheldBy(message), "warn") : null,
    message.state === "expired" ? event(message.dispatched_at ?? null, "Expired: it was not delivered, because its time was over", "warn")
      : message.dispatched_at ? event(message.dispatched_at, `Dispatched${late > 1_000 ? `, ${span(late)} late` : ""}`) : null,
    message.deliveries?.map((one) => delivery(one, acts, message)),
    message.deliveries?.length === 0 && message.state !== "withheld" ? event(null, "No group or endpoint asked for it. Sessions that have finished it are not listed.", "warn") : null,
    message.deliveries_truncated ? event(null, "There are more places than are shown.") : null);
}

const withheldBy = ({ withheld_by: why }) => why ? `Withheld: ${why}` : "Withheld until a moment ago: it goes out now";

const event = (at, what, kind = null, ...below) => h("li", { "data-kind": kind }, h("div", {}, at === null ? null : [moment(at), " "], what), below);

function delivery(one, { post }, message) {
  const place = one.group ? placeOf(one.group, one.filter) : { kind: "session", name: one.session };
  const [words, kind = null] = STATES[one.state] ?? [one.state];
  const isPosted = one.group?.startsWith(ENDPOINT) ?? false;
  const who = [`To ${isPosted ? "endpoint" : place.kind} `, h("a", { href: addressOf(place) }, place.name.replace(ENDPOINT, "")), !isPosted && one.group ? ` (${one.filter})` : ""];
  const group = isPosted ? one.group : one.group ? `$share/${one.group}/${one.filter}` : one.session;
  const tries = one.tries ?? [], older = failedOf(one) - tries.length;
  const drop = (path, what) => async () => {
    if (await confirm(`Drop this ${what}?`, "This place does not get the message again. This cannot be undone.", "Drop it")) await post(path, group, "Dropped");
  };
  const now = {
    in_flight: () => [event(null, ["Being delivered", one.by ? ` to ${person(one.by)}` : "", one.lease_until ? [", until ", moment(one.lease_until)] : ""])],
    withheld: () => message.state === "withheld" ? [] : [event(null, withheldBy(one))],
    waiting: () => [event(null, tries.length ? "Waits for a member with room" : "Not read yet")],
    retry: () => [event(one.retry_at, `Next try ${away(one.retry_at, server.now())}`, "ahead", h("div", { class: "row" },
      button("Try now", () => post("/v1/retries:try", group, "Next try is now")), button("Bury", () => post("/v1/retries:bury", group, "Moved to the dead letters"), null, { title: "Give up: make a dead letter of it" }),
      button("Drop…", drop("/v1/retries:drop", "retry"), "danger")))],
    done: () => one.ended_at ? [event(one.ended_at, [h("span", { class: "good" }, "done"), one.seconds === undefined ? "" : ` after ${span(one.seconds * 1_000)}`, `, ${person(one.by)}`, one.answer ? `: ${one.answer}` : ""], "good")] : [],
    dead: () => [event(null, [h("span", { class: "bad" }, "Given up"), `: ${one.reason}`], "bad", h("div", { class: "row" },
      button("Requeue", () => post("/v1/dead:requeue", group, "Sent again"), null, { title: "Send it again to this place" }), button("Drop…", drop("/v1/dead:drop", "dead letter"), "danger")))],
  }[one.state]?.() ?? [];
  return h("li", { "data-kind": kind }, h("div", {}, who, " ", tag(words, kind)),
    tries.length || now.length ? h("ol", {}, older > 0 ? event(null, `${count(older)} earlier failed ${older === 1 ? "try" : "tries"}`) : null, tries.map(failed), now) : null);
}

/** Failed tries, of those that began. */
const failedOf = ({ attempts = 0, state }) => attempts - (state === "in_flight" || state === "done" ? 1 : 0);

const failed = (one) => event(one.at, [h("span", { class: "bad" }, OUTCOMES[one.outcome] ?? one.outcome), one.seconds === null ? "" : ` after ${span(one.seconds * 1_000)}`, `, ${person(one.by)}: ${one.reason}`], "bad");

/** Who had a message in hand. */
export const person = (by) => (by === "" ? "an unknown receiver" : by === "(pull)" ? "a worker over HTTP" : by.startsWith(ENDPOINT) ? `endpoint ${by.slice(ENDPOINT.length)}` : by);
