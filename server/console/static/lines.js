// A small chart of one to three series over time, readable at the width of a phone.
//
// The first line is drawn through, the second dashed, the third dotted, and the legend says in words which is
// which, with the last value. A gap (null) stays one. Each moment says its figures under the pointer; the label
// of the picture says the last and the largest of each series.

import { h } from "./dom.js";
import { clock, day, DAY } from "./format.js";

const WIDTH = 380, HEIGHT = 132, LEFT = 6, TOP = 18, BOTTOM = 20;
const INNER = HEIGHT - TOP - BOTTOM;
const KINDS = ["line-1", "line-2", "line-3"];

const when = (ms, length) => (length >= DAY / 2 ? `${day(ms).slice(5)} ${clock(ms)}` : clock(ms));

/** `series`: [name, [[ms, value or null], ...]]; `say`: value -> text with its unit. `from`, `to`: ms of the axis.
 *  `least`: the scale reaches at least so far. A series without points is left out; null if all are. */
export function lines({ title, series, say, from, to, least = 0, note = null }) {
  const shown = series.filter(([, points]) => points.length);
  if (!shown.length) return null;
  const values = shown.flatMap(([, points]) => points.map(([, value]) => value)).filter((value) => value !== null);
  const most = Math.max(least, ...values) || 1;
  const x = (ms) => LEFT + Math.min(1, Math.max(0, (ms - from) / (to - from))) * (WIDTH - 2 * LEFT);
  const y = (value) => TOP + INNER * (1 - value / most);
  const told = (points) => { const last = points.findLast(([, value]) => value !== null); return last ? say(last[1]) : "–"; };
  const highest = (points) => points.reduce((best, one) => (one[1] !== null && (best === null || one[1] > best[1]) ? one : best), null);
  const label = shown.map(([name, points]) => {
    const top = highest(points);
    return top ? `${name} ${told(points)}, largest ${say(top[1])} at ${when(top[0], to - from)}` : `${name}: nothing`;
  });
  return h("figure", { class: "lines" },
    h("figcaption", {}, h("strong", {}, title), shown.map(([name, points], index) => h("span", {}, shown.length > 1 && key(index), `${name} `, h("b", {}, told(points)))), note && h("span", {}, note)),
    h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, ${when(from, to - from)} to ${when(to, to - from)}: ${label.join("; ")}` },
      h("line", { class: "axis", x1: LEFT, x2: WIDTH - LEFT, y1: y(0), y2: y(0) }),
      h("line", { class: "axis", x1: LEFT, x2: WIDTH - LEFT, y1: TOP, y2: TOP }),
      h("text", { x: LEFT, y: TOP - 5 }, values.length ? say(most) : "nothing yet"),
      h("text", { x: LEFT, y: HEIGHT - 5 }, when(from, to - from)),
      h("text", { x: WIDTH - LEFT, y: HEIGHT - 5, "text-anchor": "end" }, when(to, to - from)),
      shown.map(([, points], index) => pieces(points).map((piece) => drawn(piece, KINDS[index], x, y))),
      moments(shown, say, x, to - from)));
}

/** The swatch of a series. */
const key = (index) => h("svg", { viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": "true" }, h("line", { class: KINDS[index], x1: 0, x2: 18, y1: 4, y2: 4 }));

/** A series without its gaps. */
function pieces(points) {
  const found = [[]];
  for (const one of points) one[1] === null ? found.push([]) : found.at(-1).push(one);
  return found.filter((piece) => piece.length);
}

function drawn(piece, kind, x, y) {
  const at = piece.map(([ms, value]) => [x(ms), y(value)]);
  if (at.length === 1) at.push([at[0][0] + 2, at[0][1]]);  // one moment alone shows as well
  return h("polyline", { class: kind, points: at.map(([left, top]) => `${left.toFixed(1)},${top.toFixed(1)}`).join(" ") });
}

/** What stands under the pointer, for each moment. */
function moments(shown, say, x, length) {
  const times = [...new Set(shown.flatMap(([, points]) => points.map(([ms]) => ms)))].sort((a, b) => a - b);
  const at = shown.map(([name, points]) => [name, new Map(points)]);
  return times.map((ms, index) => {
    const left = index ? x(times[index - 1]) : LEFT;
    const said = at.map(([name, of]) => `${name} ${of.get(ms) === undefined || of.get(ms) === null ? "–" : say(of.get(ms))}`).join(", ");
    return h("rect", { class: "moment", x: left, width: Math.max(1, x(ms) - left), y: TOP, height: INNER }, h("title", {}, `${when(ms, length)}: ${said}`));
  });
}
