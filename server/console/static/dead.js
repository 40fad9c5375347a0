// Dead letters: what was given up, why, and the ways on: sent again to the place that gave it up or to another, or forgotten.

import { field } from "./dom.js";
import { server } from "./format.js";
import { opener } from "./kept.js";

export const dead = {
  path: "/v1/dead", member: "messages", page: "dead", title: "Dead letters", one: "dead letter", many: "dead letters",
  untilNow: () => ({ to: new Date(server.now()).toISOString() }),
  empty: "No dead letters. A message is kept here when its last try at a place has failed, or when a worker has rejected it.",
  when: ["Given up", (one) => one.died_at],
  actions: [
    {
      verb: "requeue", name: "Requeue", would: "be sent again, with all their tries ahead", done: "Requeued: it is sent again",
      ask: () => [field("To another group or endpoint", "to", { placeholder: "empty: where it was given up" }), field("Delay", "deliver_in", { placeholder: "10m; empty: now" })],
    },
    { verb: "drop", name: "Drop", would: "be deleted", done: "Dropped", kind: "danger", sure: "The dead letter is deleted, and nobody gets the message. This cannot be undone." },
  ],
};
export const open = opener(dead);
