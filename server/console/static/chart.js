// The density chart: bars of time, with what stands on the timeline besides them.
//
// It is told what to draw and says what its user did; it asks for nothing. `range` is { from, to } in ms,
// `buckets` are { at, until, past, ahead }: counts of what was dispatched and of what is pending. The scale of
// counts is linear or log(1 + n), on which one message still shows beside a million. It is drawn for the width that
// it has, so that its texts are as large on a phone.

import { h } from "./dom.js";
import { clock, count, instant, span, zone, DAY, HOUR, MINUTE } from "./format.js";

const HEIGHT = 300, LEFT = 48, TOP = 32, BOTTOM = 30, NAME = 130, TICK = 70;
const INNER = HEIGHT - TOP - BOTTOM;
const STEPS = [1_000, 5_000, 15_000, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY];
const short = new Intl.NumberFormat("en", { notation: "compact" });

/** Days and months of the chosen zone as people say them: "27 Nov", "Fri 27 Nov", "Nov 2026". */
const inWords = (parts) => (ms) => new Intl.DateTimeFormat("en-GB", { ...parts, timeZone: zone.name }).format(ms);
const date = inWords({ day: "numeric", month: "short" }), month = inWords({ month: "short", year: "numeric" });
export const weekday = inWords({ weekday: "short", day: "2-digit", month: "short" });

/** The shortest step (ms) that cuts the range into at most `most`. */
export function bucketOf(range, most) {
  return STEPS.find((step) => (range.to - range.from) / step <= most) ?? STEPS.at(-1);
}

/** `marks`: [class, ms, what it is]; `spans`: [class, from, to, what]. `on`: { hover(bucket), pick(bucket), zoom(factor, at), pan(ms) }. */
export function chart({ range, buckets, width, isLog, marks, spans, on }) {
  const x = (ms) => LEFT + ((ms - range.from) / (range.to - range.from)) * (width - LEFT);
  const most = Math.max(1, ...buckets.map((one) => one.past + one.ahead));
  const scale = isLog ? (n) => Math.log1p(n) / Math.log1p(most) : (n) => n / most;
  const y = (n) => TOP + INNER * (1 - scale(n));
  const within = (ms) => Math.min(Math.max(ms, range.from), range.to);
  const total = buckets.reduce((sum, one) => sum + one.past + one.ahead, 0);
  const bars = buckets.flatMap((one) => {
    const [left, wide] = [x(one.at), Math.max(1, x(one.until) - x(one.at) - 1)];
    const bar = (kind, from, to) => from === to ? null : h("rect", { class: kind, x: left, width: wide, y: y(to), height: Math.max(1.5, y(from) - y(to)) });
    return [bar("bar past", 0, one.past), bar("bar", one.past, one.past + one.ahead)];
  });
  const shown = marks.filter(([, ms]) => ms >= range.from && ms <= range.to).sort((a, b) => a[1] - b[1]);
  const node = h("svg", {
    class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: "0",
    "aria-label": `${count(total)} messages from ${instant(range.from)} to ${instant(range.to)}; arrows move, plus and minus zoom`,
  },
  spans.filter(([, from, to]) => to > range.from && from < range.to).map(([kind, from, to, what]) =>
    h("rect", { class: kind, x: x(within(from)), width: x(within(to)) - x(within(from)), y: TOP, height: INNER }, h("title", {}, what))),
  levels(most, isLog).map((n) => [
    h("line", { class: "axis", x1: LEFT, x2: width, y1: y(n), y2: y(n) }),
    h("text", { x: LEFT - 6, y: y(n) + 4, "text-anchor": "end" }, short.format(n)),
  ]),
  bars,
  ticks(range, (width - LEFT) / TICK).map(([ms, text]) => [
    h("line", { class: "axis", x1: x(ms), x2: x(ms), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 5 }),
    h("text", { x: x(ms), y: HEIGHT - BOTTOM + 18, "text-anchor": x(ms) > width - TICK / 2 ? "end" : "middle" }, text),
  ]),
  shown.map(([kind, ms, what], index) => [
    h("line", { class: kind, x1: x(ms), x2: x(ms), y1: TOP, y2: HEIGHT - BOTTOM }),
    h("text", { x: x(ms), y: 12 + 13 * (index % 2), ...aside(x(ms), width) }, what),
  ]),
  buckets.map((one) => h("rect", {
    class: "hit", x: x(one.at), width: Math.max(1, x(one.until) - x(one.at)), y: TOP, height: INNER,
    onpointerenter: () => on.hover(one), onclick: () => { if (!moved) on.pick(one); },
  }, h("title", {}, said(one)))));

  let moved = false;
  node.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = node.getBoundingClientRect();
    const at = range.from + ((event.clientX - box.left) / box.width * width - LEFT) / (width - LEFT) * (range.to - range.from);
    on.zoom(event.deltaY > 0 ? 1.25 : 0.8, within(at));
  }, { passive: false });
  node.addEventListener("pointerdown", (down) => {
    // The chart may be drawn anew meanwhile, and this node has no width then.
    const msPerPixel = (range.to - range.from) / (node.getBoundingClientRect().width * ((width - LEFT) / width));
    const drag = new AbortController();
    let shift = 0;
    moved = false;
    const end = () => { drag.abort(); if (moved) on.pan(shift); };
    addEventListener("pointermove", (event) => {
      shift = (down.clientX - event.clientX) * msPerPixel;
      moved ||= Math.abs(down.clientX - event.clientX) > 5;
    }, drag);
    addEventListener("pointerup", end, drag);
    addEventListener("pointercancel", end, drag);
  });
  node.addEventListener("keydown", (event) => {
    const length = range.to - range.from;
    const act = { ArrowLeft: () => on.pan(-length / 4), ArrowRight: () => on.pan(length / 4), "+": () => on.zoom(0.5), "=": () => on.zoom(0.5), "-": () => on.zoom(2) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  return node;
}

/** Where the name of a mark stands: beside it, and inside of the chart. */
function aside(x, width) {
  return x < width - NAME ? { "text-anchor": "start", dx: 4 } : { "text-anchor": "end", dx: -4 };
}

/** What a bucket holds, in words. */
export function said({ at, until, past, ahead }) {
  return `${instant(at)}, ${span(until - at)}: ${count(ahead)} pending${past ? `, ${count(past)} dispatched` : ""}`;
}

/** Round counts of the scale, at most five. */
function levels(most, isLog) {
  if (isLog) return Array.from({ length: Math.floor(Math.log10(most)) + 1 }, (_, index) => 10 ** index);
  const ten = 10 ** Math.floor(Math.log10(most));
  const step = Math.max(1, [0.2, 0.5, 1, 2].map((one) => one * ten).find((one) => most / one <= 5) ?? most);
  return Array.from({ length: Math.floor(most / step) }, (_, index) => (index + 1) * step);
}

/** Round times of the chosen zone's days, or of the hour, each with its text; at most `most`. */
function ticks({ from, to }, most) {
  const step = bucketOf({ from, to }, most);
  const offset = step >= HOUR && !zone.isUtc ? -new Date(from).getTimezoneOffset() * MINUTE : 0;
  const first = Math.ceil((from + offset) / step) * step - offset;
  const time = (ms) => (step < MINUTE ? instant(ms).split(" ")[1] : clock(ms) === "00:00" ? date(ms) : clock(ms));
  const text = step >= 30 * DAY ? month : step >= DAY ? date : time;
  return Array.from({ length: Math.max(0, Math.ceil((to - first) / step)) }, (_, index) => first + index * step).map((ms) => [ms, text(ms)]);
}
