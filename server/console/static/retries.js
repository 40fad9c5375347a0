// Retries: what waits for its next try, and the ways on: tried sooner or later, given up, forgotten.

import { field } from "./dom.js";
import { opener } from "./kept.js";

export const open = opener({
  path: "/v1/retries", member: "retries", title: "Retries", many: "retries",
  when: ["Next try", (one) => one.retry_at],
  actions: [
    { verb: "try", name: "Try now", act: "Try them", done: "Next try is now", ask: () => field("Not now but in", "deliver_in", { placeholder: "PT10M, or nothing" }) },
    { verb: "bury", name: "Bury", act: "Bury them", done: "Moved to the dead letters", kind: "danger" },
    { verb: "drop", name: "Drop", act: "Drop them", done: "Dropped", kind: "danger" },
  ],
});
