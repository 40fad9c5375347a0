// Elements made of values. What comes from the server becomes text and attributes here, never markup: there is
// no other place where elements are made, and nothing here reads HTML. Characters that would show a text other
// than it is, because they turn its direction or have no shape, are shown by their numbers.

import { away, both, instant, server } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "line", "text", "title", "polyline", "path"]);

const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;

/** A text as it is: `a\u202eb` rather than what its reader would take for something else. */
export const plain = (text) => text.replace(UNSEEN, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);

/** An element. `attributes`: `onclick` and its like are listeners, `class` and others attributes, true an empty
 *  one; null, undefined and false leave it out. `children`: nodes, texts, lists of them; null is nobody. */
export function h(tag, attributes = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child instanceof Node ? child : plain(String(child)));
  }
  return node;
}

const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";

/** Put these in the place of what is there. Where the focus was in it, it goes to what is the same now: a page
 *  that is drawn anew must not lose who works by keyboard, nor put him on the button of another row. Tables stay
 *  scrolled as they were. */
export function fill(node, ...children) {
  const before = node.contains(document.activeElement) ? place(node, document.activeElement) : null;
  const scrolled = new Map([...node.querySelectorAll(".scroll")].map((one) => [one.ariaLabel, one.scrollLeft]));
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : plain(String(child)))));
  for (const one of node.querySelectorAll(".scroll")) if (scrolled.get(one.ariaLabel)) one.scrollLeft = scrolled.get(one.ariaLabel);
  // Long texts scroll: by keyboard, too.
  for (const one of node.querySelectorAll("h1, td.text > div, dt, dd")) if (one.scrollHeight > one.clientHeight + 1) one.tabIndex = 0;
  if (before === null) return;
  const same = [...node.querySelectorAll(FOCUSABLE)].find((one) => place(node, one) === before);
  (same ?? node.querySelector(FOCUSABLE))?.focus({ preventScroll: true });
}

/** Where something stands: in a table the row, by what it is about, and where in it; else its number. */
function place(node, one) {
  const row = one.closest("tbody tr");
  const others = [...(row ?? node).querySelectorAll(FOCUSABLE)].filter((other) => row || !other.closest("tbody"));
  return JSON.stringify([row && (row.querySelector("a")?.hash ?? row.cells[0].textContent), others.indexOf(one)]);
}

/** A table. `columns`: [heading, row -> content, kind, row -> value to sort by]; the kind is the class of the cells,
 *  and a column without a value cannot sort. `order`: { sort: heading, down: largest first }, which the page keeps: a
 *  click on a heading changes it. On a phone each row is a card, whose lines say their headings. */
export function table(columns, rows, caption, order = {}) {
  const body = h("tbody"), heads = columns.map(head);
  function head([name, , kind, by]) {
    const node = h("th", { class: kind === "number" ? kind : null, scope: "col" }, by ? button(name, () => turn(name, kind), "sort") : name);
    return node;
  }
  function turn(name, kind) {
    order.down = order.sort === name ? !order.down : kind === "number";
    order.sort = name;
    draw();
  }
  function draw() {
    const by = columns.find(([name, , , value]) => value && name === order.sort)?.[3];
    const sorted = by ? rows.toSorted((a, b) => compare(by(a), by(b), order.down ? -1 : 1)) : rows;
    columns.forEach(([name, , , value], index) => {
      if (value && name === order.sort) heads[index].setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else heads[index].removeAttribute("aria-sort");
    });
    body.replaceChildren(...sorted.map((row) => h("tr", {}, columns.map(([name, of, kind]) => h("td", { class: kind, "data-label": name },
      kind === "text" ? h("div", {}, of(row)) : of(row))))));
  }
  draw();
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, h("table", {}, h("thead", {}, h("tr", {}, heads)), body));
}

/** Numbers and texts, in order or, with the sign -1, in reverse; what is not known comes last in both. */
function compare(a, b, sign) {
  const [noA, noB] = [a, b].map((one) => one === null || one === undefined);
  if (noA || noB) return noA - noB;
  return sign * (typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
}

/** A state in a word; `kind`: good, warn, bad or none. */
export const tag = (text, kind = null) => h("span", { class: kind ? `tag ${kind}` : "tag" }, text);

/** A time; its title says the time zone, UTC and how far away it is. */
export const moment = (value) => value === null || value === undefined ? "–"
  : h("time", { title: `${both(value)}, ${away(value, server.now())}` }, instant(value));

/** Links of which one is shown: [[name, address], ...]. */
export const tabs = (links, current) => h("nav", { class: "tabs", "aria-label": "Views" },
  links.map(([name, href]) => h("a", { href, "aria-current": name === current ? "page" : null }, name)));

/** Names and what they are; pairs whose value is null or undefined are left out. */
export function facts(pairs) {
  const told = pairs.filter(([, value]) => value !== null && value !== undefined);
  return h("dl", {}, told.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** A labelled input. `options`: of a select, values or [value, text]. */
export function field(label, name, { value = "", type = "text", options = null, wide = false, ...more } = {}) {
  const id = `field-${name}`;
  let input;
  if (options) {
    input = h("select", { id, name, ...more }, options.map((one) => [one].flat()).map(([of, text = of]) => h("option", { value: of, selected: of === value }, text || "–")));
  } else if (type === "area") {
    input = h("textarea", { id, name, ...more });
    input.value = value;
  } else {
    input = h("input", { id, name, type, value, autocomplete: "off", spellcheck: "false", ...more });
  }
  return h("label", { for: id, class: wide ? "wide" : null }, label, input);
}

/** What a form holds, without what is empty. */
export function entries(form) {
  return Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value !== ""));
}

/** A button. While what it began is under way, it takes no second click. */
export function button(text, action, kind = null, more = {}) {
  return h("button", { type: "button", class: kind, onclick: once(action), ...more }, text);
}

/** A listener of a form: `action` instead of what the browser does, one at a time. */
export function submitted(action) {
  const act = once(action);
  return (event) => { event.preventDefault(); act(event); };
}

/** Calls that come while one is under way are left out: of two clicks the second is mostly meant for the first. */
function once(action) {
  let isBusy = false;
  return async (event) => {
    if (isBusy) return;
    isBusy = true;
    try { await action(event); } finally { isBusy = false; }
  };
}

/** A line of values, the newest at the right. */
export function spark(values, label, width = 160, height = 30) {
  const most = Math.max(1, ...values);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(height - 2 - (height - 4) * (value / most)).toFixed(1)}`);
  return h("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    h("polyline", { class: "spark", points: points.join(" ") }));
}
