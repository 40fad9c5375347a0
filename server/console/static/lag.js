// How far behind somebody is, as pages show it, with what it was since the page was opened.

import { h, spark } from "./dom.js";
import { count, span } from "./format.js";

const KEPT = 60, NAMES_MAX = 2_000;

/** The last values of many, by name; the oldest name makes room. */
export class History {
  constructor() { this.values = new Map(); }

  add(name, value) {
    const values = this.values.get(name) ?? [];
    this.values.delete(name);
    this.values.set(name, [...values.slice(-KEPT + 1), value]);
    if (this.values.size > NAMES_MAX) this.values.delete(this.values.keys().next().value);
  }

  of(name) { return this.values.get(name) ?? []; }
}

export const lagMessages = (one) => one.lag_messages === undefined ? "–" : `${count(one.lag_messages)}${one.lag_messages_is_exact ? "" : " or more"}`;
export const lagSeconds = (one) => one.lag_seconds === undefined ? "–" : span(one.lag_seconds * 1_000);
export const lagLine = (history, name) => {
  const values = history.of(name);
  return values.length > 1 ? spark(values, `lag in messages, ${values.length} looks, now ${values.at(-1)}`) : h("span", { class: "faint" }, "…");
};
