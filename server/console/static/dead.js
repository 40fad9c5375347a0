// Dead letters: what was given up, why, and the ways on: sent again to who gave it up or to another, or forgotten.

import { field } from "./dom.js";
import { opener } from "./kept.js";

export const open = opener({
  path: "/v1/dead", member: "messages", title: "Dead letters", many: "dead letters",
  when: ["Died", (one) => one.died_at],
  actions: [
    { verb: "requeue", name: "Again", act: "Send them again", done: "Sent again", ask: () => field("To another group or endpoint", "to", { placeholder: "to who gave it up" }) },
    { verb: "drop", name: "Drop", act: "Drop them", done: "Dropped", kind: "danger" },
  ],
});
