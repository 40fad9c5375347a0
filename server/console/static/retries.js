// Retries: what waits for its next try, and the ways on: tried sooner or later, given up, forgotten.

import { field } from "./dom.js";
import { server } from "./format.js";
import { opener, place } from "./kept.js";

export const retries = {
  path: "/v1/retries", member: "retries", page: "retries", title: "Retries", one: "retry", many: "retries",
  empty: "No retries. A message that a place failed to handle waits here for its next try.",
  when: ["Next try", (one) => one.retry_at],
  actions: [
    { verb: "try", name: "Try now", many: (which) => `Try ${which} now`, would: "be tried", done: "It is tried now", ask: () => field("Delay", "deliver_in", { placeholder: "10m; empty: now" }) },
    {
      verb: "bury", name: "Bury", would: "become dead letters", done: "It is a dead letter now",
      undo: (row) => ["/v1/dead:requeue", { ids: [row.id], group: place(row), deliver_in: Math.max(0, Math.round((Date.parse(row.retry_at) - server.now()) / 1_000)) }],
    },
    { verb: "drop", name: "Drop", would: "be dropped: the place does not get them again", done: "Dropped", kind: "danger", sure: "The place does not get it again, and it becomes no dead letter. This cannot be undone." },
  ],
};
export const open = opener(retries);
