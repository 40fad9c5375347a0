// The coming weeks hour by hour: a row a day, a column an hour of the zone that times are shown in; on a phone a
// column is three hours, so that a finger finds it.

import { weekday } from "./chart.js";
import { h } from "./dom.js";
import { clock, count, day, midnight, toApi, DAY, HOUR } from "./format.js";

const NARROW = 600;

/** `buckets`: the density by hours, { at (ms), count }; `days`: rows; `width`: pixels; `topic`: a filter that the
 *  messages behind a cell match too, or null. */
export function heatMap(buckets, fromMs, days, width, topic) {
  const step = width < NARROW ? 3 : 1;
  const two = (hour) => String(hour).padStart(2, "0");
  const cells = new Map();
  for (const { at, count: n } of buckets) {
    // By the wall: an hour that the clocks show twice holds both, one that they skip nothing.
    const hour = Number(clock(at).slice(0, 2));
    const place = `${day(at)} ${hour - (hour % step)}`;
    cells.set(place, (cells.get(place) ?? 0) + n);
  }
  const most = Math.max(1, ...cells.values());
  const hours = Array.from({ length: 24 / step }, (_, index) => index * step);
  const rows = Array.from({ length: days }, (_, index) => midnight(fromMs + index * DAY + 12 * HOUR));

  function cell(ms, hour) {
    const date = day(ms), n = cells.get(`${date} ${hour}`) ?? 0, from = `${date} ${two(hour)}:00`, to = `${date} ${two(hour + step - 1)}:59:59`;
    const what = `${from} to ${two(hour + step - 1)}:59: ${count(n)} pending`;
    if (!n) return h("span", { class: "cell", title: what });
    const query = { due_from: toApi(from), due_to: toApi(to), ...(topic ? { topic } : {}) };
    return shaded(h("a", { href: `#/messages?${new URLSearchParams(query)}`, title: what, "aria-label": what }), n, most);
  }

  return [
    h("p", { class: "legend" }, `Messages in ${step > 1 ? `${step} hours` : "an hour"}:`,
      h("span", {}, h("span", { class: "key" }), "none"),
      scale(most).map((n) => h("span", {}, shaded(h("span", { class: "key" }), n, most), count(n)))),
    h("div", { class: step > 1 ? "heat by-three" : "heat" },
      h("span"), hours.map((hour) => h("span", { class: "hour", "aria-hidden": "true" }, two(hour))),
      rows.map((ms) => [h("span", { class: "faint" }, weekday(ms)), hours.map((hour) => cell(ms, hour))])),
  ];
}

/** A logarithmic shade: one message is seen, and a thousand are not drowned by a million. */
function shaded(node, n, most) {
  node.style.background = `color-mix(in srgb, var(--accent) ${Math.round(18 + 82 * Math.log1p(n) / Math.log1p(most))}%, transparent)`;
  return node;
}

/** The powers of ten up to the largest number, and that one. */
const scale = (most) => [...Array.from({ length: Math.ceil(Math.log10(most)) }, (_, index) => 10 ** index), most];
