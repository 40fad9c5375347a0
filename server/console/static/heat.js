// The coming weeks hour by hour: a row a day, a column an hour of the zone that times are shown in.

import { h } from "./dom.js";
import { clock, count, day, midnight, toApi, DAY, HOUR } from "./format.js";

/** `buckets`: the density by hours, { at (ms), count }; `days`: rows. */
export function heatMap(buckets, fromMs, days) {
  const most = Math.max(1, ...buckets.map((one) => one.count));
  const cells = new Map();
  for (const { at, count: n } of buckets) {
    // By the wall: an hour that the clocks show twice holds both, one that they skip nothing.
    const place = `${day(at)} ${clock(at).slice(0, 2)}`;
    cells.set(place, (cells.get(place) ?? 0) + n);
  }
  const hours = Array.from({ length: 24 }, (_, hour) => String(hour).padStart(2, "0"));
  const rows = Array.from({ length: days }, (_, index) => day(midnight(fromMs + index * DAY + 12 * HOUR)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Pending messages by hour and day" },
    h("div", { class: "heat" },
      h("span"), hours.map((hour) => h("span", { class: "hour", "aria-hidden": "true" }, hour)),
      rows.map((date) => [
        h("span", { class: "faint" }, date.slice(5)),
        hours.map((hour) => cell(date, hour, cells.get(`${date} ${hour}`) ?? 0, most)),
      ])));
}

function cell(date, hour, n, most) {
  const what = `${date} ${hour}:00: ${count(n)} pending`;
  if (!n) return h("span", { class: "cell", title: what });
  const from = toApi(`${date} ${hour}:00`), to = toApi(`${date} ${hour}:59:59`);
  const node = h("a", { href: `#/messages?${new URLSearchParams({ due_from: from, due_to: to })}`, title: what, "aria-label": what });
  node.style.background = `color-mix(in srgb, var(--accent) ${Math.round(18 + 82 * Math.log1p(n) / Math.log1p(most))}%, transparent)`;
  return node;
}
