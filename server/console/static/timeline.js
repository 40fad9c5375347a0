// The timeline: how much lies when, from what has been to the far future, with now as a line.

import { bucketOf, chart, said } from "./chart.js";
import { denied } from "./api.js";
import { attempt } from "./ask.js";
import { button, fill, h, table } from "./dom.js";
import { count, instant, midnight, span, server, DAY, HOUR, MINUTE } from "./format.js";
import { heatMap } from "./heat.js";

const REFRESH_MS = 5_000;
const HEAT_DAYS = 21;
const SHORTEST = MINUTE, LONGEST = 12 * 365 * DAY;
const VIEWS = [["10 min", 10 * MINUTE], ["1 h", HOUR], ["6 h", 6 * HOUR], ["1 d", DAY], ["7 d", 7 * DAY], ["30 d", 30 * DAY], ["1 year", 365 * DAY]];

export async function open(root, { api, live, go, every }) {
  let range = around(server.now(), HOUR);
  let isLog = false;
  let figures = null;
  let reading = null, isStale = false;
  /** Slices ask for more than messages do. */
  let maySeeSlices = true;
  const place = h("div"), legend = h("p", { class: "legend", "aria-live": "off" }), heat = h("div"), list = h("div");
  const views = VIEWS.map(([name, length]) => button(name, () => look(around(server.now(), length))));
  const log = button("Log scale", () => { isLog = !isLog; log.setAttribute("aria-pressed", isLog); draw(); }, null, { "aria-pressed": "false" });
  fill(root,
    h("h1", {}, "Timeline"),
    h("div", { class: "row", role: "toolbar", "aria-label": "Range" }, views,
      button("−", () => zoom(2), null, { "aria-label": "Zoom out" }), button("+", () => zoom(0.5), null, { "aria-label": "Zoom in" }),
      button("◀", () => pan(-(range.to - range.from) / 2), null, { "aria-label": "Earlier" }), button("▶", () => pan((range.to - range.from) / 2), null, { "aria-label": "Later" }),
      button("Now", () => look(around(server.now(), range.to - range.from))), log),
    place, legend,
    h("details", {}, h("summary", {}, "The same as a table"), list),
    h("h2", {}, `The coming ${HEAT_DAYS} days, hour by hour`), heat);

  let data = { buckets: [], slices: [], floor: null };

  /** Read what is shown, one reading at a time: a wheel asks for sixty a second. */
  function load() {
    isStale = reading !== null;
    reading ??= readAll().finally(() => { reading = null; });
    return reading;
  }

  async function readAll() {
    do {
      isStale = false;
      await read(range);
    } while (isStale);
  }

  async function read(wanted) {
    const read = await density(api, wanted, bucketOf(wanted));
    const slices = maySeeSlices ? await api.get("/v1/slices", { limit: 1_000 }).catch(denied) : null;
    maySeeSlices = slices !== null;
    if (wanted !== range) return;
    data = { buckets: read, slices: (slices?.slices ?? []).map((one) => ({ ...one, from: Date.parse(one.start), to: Date.parse(one.end), isOver: one.count > slices.split_above })) };
    draw();
  }

  async function loadHeat() {
    const from = midnight(server.now());
    const density = await api.get("/v1/timeline/density", { from, to: from + (HEAT_DAYS + 1) * DAY, bucket: "PT1H" });
    fill(heat, heatMap(density.buckets.map((one) => ({ at: Date.parse(one.at), count: one.count })), from, HEAT_DAYS));
  }

  function draw() {
    const marks = [["now", server.now(), "now"]];
    if (figures && figures.behind_ms > 1_000) marks.push(["horizon", Date.parse(figures.horizon), "horizon"]);
    if (data.slices.length) marks.push(["floor", data.slices[0].from, "oldest that is kept"]);
    const spans = data.slices.filter((one) => one.isOver).map((one) => ["overfull", one.from, one.to, `overfull: ${count(one.count)} rows in the slice from ${instant(one.from)}`]);
    fill(place, chart({ range, buckets: data.buckets, isLog, marks, spans, on: { hover, pick, zoom, pan } }));
    hover(null);
    fill(list, table([["From", (one) => instant(one.at), "nowrap"], ["Dispatched", (one) => count(one.past), "number"], ["Pending", (one) => count(one.ahead), "number"]],
      data.buckets.filter((one) => one.past || one.ahead), "Messages by time"));
  }

  function hover(bucket) {
    const length = range.to - range.from;
    fill(legend, bucket ? said(bucket) : h("span", {}, `${instant(range.from)} to ${instant(range.to)} (${span(length)}), a bar is ${span(bucketOf(range))}. Click a bar for its messages.`));
  }

  const pick = (bucket) => go(`/messages?${new URLSearchParams({ due_from: new Date(bucket.at).toISOString(), due_to: new Date(bucket.until).toISOString(), state: bucket.ahead ? "pending" : "all" })}`);

  function look(next) {
    range = next;
    draw();
    act(load);
  }

  function zoom(factor, at = (range.from + range.to) / 2) {
    const length = Math.min(LONGEST, Math.max(SHORTEST, (range.to - range.from) * factor));
    const share = (at - range.from) / (range.to - range.from);
    look({ from: Math.max(0, Math.round(at - length * share)), to: Math.round(at - length * share + length) });
  }

  const pan = (ms) => look({ from: Math.max(0, Math.round(range.from + ms)), to: Math.round(range.to + ms) });
  const act = (action) => attempt(action, null);

  const end = live.on((now) => { figures = now; });
  await Promise.all([load(), loadHeat()]);
  every(REFRESH_MS, load);
  every(12 * REFRESH_MS, loadHeat);
  return end;
}

/** A range of this length, a fifth of it behind. */
function around(ms, length) {
  return { from: Math.round(ms - length / 5), to: Math.round(ms + (length * 4) / 5) };
}

/** The range in buckets. The two answers are of two moments, so what went out between them may be missing for once. */
async function density(api, { from, to }, width) {
  const first = Math.floor(from / width) * width;
  const query = { from: first, to, bucket: width / 1_000 };
  const [ahead, all] = await Promise.all([
    api.get("/v1/timeline/density", query),
    first < server.now() ? api.get("/v1/timeline/density", { ...query, past: true }) : null,
  ]);
  return ahead.buckets.map((one, index) => {
    const at = Date.parse(one.at);
    return { at, until: Math.min(at + width, to), ahead: one.count, past: all ? Math.max(0, all.buckets[index].count - one.count) : 0 };
  });
}
