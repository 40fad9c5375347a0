// The density chart: bars of time, with what stands on the timeline besides them.
//
// It is told what to draw and says what its user did; it asks for nothing. `range` is { from, to } in ms,
// `buckets` are { at, until, past, ahead }: counts of what was dispatched and of what is pending. The scale of
// counts is linear or log(1 + n), on which one message still shows beside a million.

import { h } from "./dom.js";
import { clock, count, day, instant, span, zone, DAY, HOUR } from "./format.js";

const WIDTH = 1_200, HEIGHT = 300, LEFT = 56, TOP = 22, BOTTOM = 34, NAME = 130;
const INNER = HEIGHT - TOP - BOTTOM;
const STEPS = [1_000, 5_000, 15_000, 60_000, 300_000, 900_000, HOUR, 3 * HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 90 * DAY, 365 * DAY];

/** The width (ms) of a bucket that cuts the range into at most `most`. */
export function bucketOf(range, most = 120) {
  return STEPS.find((step) => (range.to - range.from) / step <= most) ?? STEPS.at(-1);
}

/** Where the name of a mark stands: away from the others, and inside of the chart. */
function aside(x, isLast) {
  const isRight = x < LEFT + NAME ? true : x > WIDTH - NAME ? false : isLast;
  return { "text-anchor": isRight ? "start" : "end", dx: isRight ? 4 : -4 };
}

/** `marks`: [class, ms, what it is]; `spans`: [class, from, to, what]. `on`: { hover(bucket), pick(bucket), zoom(factor, at), pan(ms) }. */
export function chart({ range, buckets, isLog, marks, spans, on }) {
  const x = (ms) => LEFT + ((ms - range.from) / (range.to - range.from)) * (WIDTH - LEFT);
  const most = Math.max(1, ...buckets.map((one) => one.past + one.ahead));
  const scale = isLog ? (n) => Math.log1p(n) / Math.log1p(most) : (n) => n / most;
  const y = (n) => TOP + INNER * (1 - scale(n));
  const within = (ms) => Math.min(Math.max(ms, range.from), range.to);
  const total = buckets.reduce((sum, one) => sum + one.past + one.ahead, 0);
  const bars = buckets.flatMap((one) => {
    const [left, width] = [x(one.at), Math.max(1, x(one.until) - x(one.at) - 1)];
    const bar = (kind, from, to) => from === to ? null : h("rect", { class: kind, x: left, width, y: y(to), height: Math.max(1.5, y(from) - y(to)) });
    return [bar("bar past", 0, one.past), bar("bar", one.past, one.past + one.ahead)];
  });
  const shown = marks.filter(([, ms]) => ms >= range.from && ms <= range.to).sort((a, b) => a[1] - b[1]);
  const node = h("svg", {
    class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0",
    "aria-label": `${count(total)} messages from ${instant(range.from)} to ${instant(range.to)}; arrows move, plus and minus zoom`,
  },
  spans.filter(([, from, to]) => to > range.from && from < range.to).map(([kind, from, to, what]) =>
    h("rect", { class: kind, x: x(within(from)), width: x(within(to)) - x(within(from)), y: TOP, height: INNER }, h("title", {}, what))),
  levels(most, isLog).map((n) => [
    h("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: y(n), y2: y(n) }),
    h("text", { x: LEFT - 6, y: y(n) + 4, "text-anchor": "end" }, count(n)),
  ]),
  bars,
  ticks(range).map((ms) => [
    h("line", { class: "axis", x1: x(ms), x2: x(ms), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 5 }),
    h("text", { x: x(ms), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, tickText(ms, range)),
  ]),
  shown.map(([kind, ms, what], index) => [
    h("line", { class: kind, x1: x(ms), x2: x(ms), y1: TOP, y2: HEIGHT - BOTTOM }),
    h("text", { x: x(ms), y: 12, ...aside(x(ms), index === shown.length - 1) }, what),
  ]),
  buckets.map((one) => h("rect", {
    class: "hit", x: x(one.at), width: Math.max(1, x(one.until) - x(one.at)), y: TOP, height: INNER,
    onpointerenter: () => on.hover(one), onclick: () => { if (!moved) on.pick(one); },
  }, h("title", {}, said(one)))));

  let moved = false;
  const msPerPixel = () => (range.to - range.from) / (node.getBoundingClientRect().width * ((WIDTH - LEFT) / WIDTH));
  node.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = node.getBoundingClientRect();
    const at = range.from + ((event.clientX - box.left) / box.width * WIDTH - LEFT) / (WIDTH - LEFT) * (range.to - range.from);
    on.zoom(event.deltaY > 0 ? 1.25 : 0.8, within(at));
  }, { passive: false });
  node.addEventListener("pointerdown", (down) => {
    moved = false;
    let shift = 0;
    const move = (event) => {
      shift = (down.clientX - event.clientX) * msPerPixel();
      moved ||= Math.abs(down.clientX - event.clientX) > 5;
    };
    const up = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
      removeEventListener("pointercancel", up);
      if (moved) on.pan(shift);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
    addEventListener("pointercancel", up);
  });
  node.addEventListener("keydown", (event) => {
    const length = range.to - range.from;
    const act = { ArrowLeft: () => on.pan(-length / 4), ArrowRight: () => on.pan(length / 4), "+": () => on.zoom(0.5), "=": () => on.zoom(0.5), "-": () => on.zoom(2) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  return node;
}

/** What a bucket holds, in words. */
export function said({ at, until, past, ahead }) {
  return `${instant(at)}, ${span(until - at)}: ${count(ahead)} pending${past ? `, ${count(past)} dispatched` : ""}`;
}

function levels(most, isLog) {
  if (!isLog) return most < 4 ? [most] : [most / 2, most].map(Math.round);
  return [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000].filter((n) => n <= most);
}

/** Round times of the chosen zone's days, or of the hour, at most ten. */
function ticks({ from, to }) {
  const step = STEPS.find((one) => (to - from) / one <= 9) ?? STEPS.at(-1);
  const offset = step >= HOUR && !zone.isUtc ? -new Date(from).getTimezoneOffset() * 60_000 : 0;
  const first = Math.ceil((from + offset) / step) * step - offset;
  return Array.from({ length: Math.max(0, Math.ceil((to - first) / step)) }, (_, index) => first + index * step);
}

function tickText(ms, { from, to }) {
  if (to - from > 2 * DAY) return day(ms);
  if (to - from > 10 * 60_000) return clock(ms);
  return instant(ms).split(" ")[1];
}
