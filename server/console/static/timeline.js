// The timeline: how much lies when, from what has been to the far future, with now as a line.
//
// Its address says what is shown: `?from=&to=`, or `?span=` around now, which goes along with the time, and `topic=`.
// So it is found as it was by a user who comes back from the messages of a bar. Without a span it takes the shortest one
// that holds nine of ten pending messages.

import { bucketOf, chart, said } from "./chart.js";
import { denied, search } from "./api.js";
import { attempt } from "./ask.js";
import { button, entries, field, fill, h, submitted, table } from "./dom.js";
import { count, instant, midnight, span, server, DAY, HOUR, MINUTE } from "./format.js";
import { heatMap } from "./heat.js";

const REFRESH_MS = 5_000;
/** The server reads rows for a filter: after such a look it is left alone for so many times as long. */
const REST = 20;
const HEAT_DAYS = 21;
const SHORTEST = MINUTE, LONGEST = 12 * 365 * DAY;
const VIEWS = [["10 min", 10 * MINUTE], ["1 h", HOUR], ["6 h", 6 * HOUR], ["1 d", DAY], ["7 d", 7 * DAY], ["30 d", 30 * DAY], ["1 year", 365 * DAY], ["12 years", LONGEST]];
const BAR_PIXELS = 9;

export async function open(root, { api, live, go, query, every }) {
  const { topic } = query;
  const given = { from: Number(query.from), to: Number(query.to) }, isGiven = given.to - given.from >= SHORTEST;
  /** How long the span is that goes along with the time; null: it stays where it is. */
  let length = isGiven ? null : clamped(Number(query.span) || HOUR);
  let range = isGiven ? given : around(server.now(), length);
  let isLog = false, figures = null, hovered = null;
  let reading = null, isStale = false, restedMs = 0;
  let buckets = [], slices = [], hours = null;
  const place = h("div"), legend = h("div", { class: "legend", "aria-live": "off" }), heat = h("div"), list = h("div");
  const views = VIEWS.map(([name, ms]) => button(name, () => look(around(server.now(), ms), ms)));
  const log = button("Log scale", () => { isLog = !isLog; log.setAttribute("aria-pressed", isLog); draw(); }, null, { "aria-pressed": "false", title: "Few messages show beside very many" });
  const filter = (wanted) => go(`/timeline${address({ topic: wanted })}`);
  fill(root,
    h("div", { class: "row spread" }, h("h1", {}, "Timeline"),
      h("form", { class: "row inline", role: "search", onsubmit: submitted((event) => filter(entries(event.target).topic)) },
        field("Topic filter", "topic", { value: topic ?? "", placeholder: "orders/#" }), h("button", {}, "Show"), topic ? button("All topics", () => filter()) : null)),
    h("div", { class: "row spread" },
      h("div", { class: "row tight", role: "toolbar", "aria-label": "Span" }, views,
        button("Fit", () => attempt(() => fit(topic), null), null, { title: "The shortest span that holds nine of ten pending messages" })),
      h("div", { class: "row tight", role: "toolbar", "aria-label": "Move and zoom" },
        button("−", () => zoom(2), null, { "aria-label": "Zoom out" }), button("+", () => zoom(0.5), null, { "aria-label": "Zoom in" }),
        button("◀", () => pan(-(range.to - range.from) / 2), null, { "aria-label": "Earlier" }), button("▶", () => pan((range.to - range.from) / 2), null, { "aria-label": "Later" }),
        button("Now", () => look(around(server.now(), range.to - range.from), range.to - range.from)), log)),
    place, legend,
    h("details", {}, h("summary", {}, "As a table"), list),
    h("h2", {}, `The coming ${HEAT_DAYS} days, hour by hour`), heat);

  const address = (more = {}) => search({ ...(length ? { span: length } : range), topic, ...more });
  const width = () => Math.max(280, place.clientWidth);
  const bar = () => bucketOf(range, width() / BAR_PIXELS);

  /** Read what is shown, one reading at a time: a wheel asks for sixty a second. */
  function load() {
    isStale = reading !== null;
    reading ??= readAll().finally(() => { reading = null; });
    return reading;
  }

  async function readAll() {
    do {
      isStale = false;
      await read(range, bar());
    } while (isStale);
  }

  async function read(wanted, step) {
    const began = performance.now();
    const found = await density(api, wanted, step, topic);
    if (topic) restedMs = performance.now() + REST * (performance.now() - began);
    if (wanted === range) { buckets = found; draw(); }
  }

  async function refresh() {
    if (performance.now() < restedMs) return;
    if (length) range = around(server.now(), length);
    await load();
  }

  async function loadRest() {
    if (performance.now() < restedMs) return;
    const from = midnight(server.now());
    const [found, ahead] = await Promise.all([
      api.get("/v1/slices", { limit: 1_000 }).catch(denied), // it asks for more rights than messages do
      api.get("/v1/timeline/density", { from, to: from + (HEAT_DAYS + 1) * DAY, bucket: "PT1H", topic }),
    ]);
    slices = (found?.slices ?? []).map((one) => ({ ...one, from: Date.parse(one.start), to: Date.parse(one.end), isOver: one.count > found.split_above }));
    hours = { from, total: ahead.total, buckets: ahead.buckets.map((one) => ({ at: Date.parse(one.at), count: one.count })) };
    draw();
  }

  /** The shortest view whose future holds nine of ten pending messages of a filter. */
  async function fit(wanted) {
    const ms = await reach(api, wanted);
    const [, found] = VIEWS.find(([, one]) => ms <= AHEAD * one) ?? VIEWS.at(-1);
    await look(around(server.now(), found), found);
  }

  function draw() {
    const marks = [["now", server.now(), "now"]];
    if (figures && figures.behind_ms > 1_000) marks.push(["horizon", Date.parse(figures.horizon), "horizon"]);
    if (slices.length) marks.push(["floor", slices[0].from, "oldest kept"]);
    const spans = slices.filter((one) => one.isOver).map((one) => ["overfull", one.from, one.to, `overfull: ${count(one.count)} rows in the slice from ${instant(one.from)}`]);
    fill(place, chart({ range, buckets, width: width(), isLog, marks, spans, on: { hover, pick, zoom, pan } }));
    hover(buckets.find(({ at }) => at === hovered) ?? null);
    VIEWS.forEach(([, ms], index) => views[index].setAttribute("aria-pressed", ms === length));
    fill(list, table([
      ["From", (one) => h("a", { href: `#${messages(one)}` }, instant(one.at)), "nowrap"],
      ["Dispatched", (one) => count(one.past), "number"],
      ["Pending", (one) => count(one.ahead), "number"],
    ], buckets.filter((one) => one.past || one.ahead), "Messages by time"));
    if (hours) fill(heat, hours.total ? heatMap(hours.buckets, hours.from, HEAT_DAYS, width(), topic)
      : h("p", { class: "empty" }, "Nothing is pending in these days. A message shows here by its due time as soon as it is scheduled: ", h("a", { href: "#/messages/new" }, "New message"), "."));
  }

  function hover(bucket) {
    hovered = bucket?.at;
    const sum = (name) => count(buckets.reduce((all, one) => all + one[name], 0));
    const key = (kind, text) => h("span", {}, h("span", { class: `key ${kind}` }), text);
    fill(legend, bucket ? said(bucket) : [
      key("bar past", `${sum("past")} dispatched`), key("bar", `${sum("ahead")} pending`),
      h("span", {}, `${instant(range.from)} to ${instant(range.to)} (${span(range.to - range.from)}), a bar is ${span(bar())}. Click a bar for its messages.`)]);
  }

  const messages = (bucket) => `/messages${search({ due_from: new Date(bucket.at).toISOString(), due_to: new Date(bucket.until).toISOString(), topic, state: bucket.ahead ? "pending" : "all" })}`;
  const pick = (bucket) => go(messages(bucket));

  /** Show another span; `along`: its length if it goes along with the time. */
  function look(next, along = null) {
    if (!root.isConnected) return undefined;  // its user has gone on, and the address is that of another page
    range = next;
    length = along;
    history.replaceState(null, "", `#/timeline${address()}`);
    draw();
    return attempt(load, null);
  }

  function zoom(factor, at = (range.from + range.to) / 2) {
    const next = clamped((range.to - range.from) * factor);
    const share = (at - range.from) / (range.to - range.from);
    look({ from: Math.max(0, Math.round(at - next * share)), to: Math.round(at - next * share + next) });
  }

  const pan = (ms) => look({ from: Math.max(0, Math.round(range.from + ms)), to: Math.round(range.to + ms) });

  const end = live.on((now) => { figures = now; });
  await Promise.all([isGiven || query.span ? load() : fit(), loadRest()]);
  every(REFRESH_MS, refresh);
  every(12 * REFRESH_MS, loadRest);
  let drawn = width();
  const resized = new ResizeObserver(() => { if (drawn !== width()) { drawn = width(); draw(); } });
  resized.observe(place);
  return () => { end(); resized.disconnect(); };
}

const clamped = (ms) => Math.min(LONGEST, Math.max(SHORTEST, ms));

/** The share of a view that is ahead of now. */
const AHEAD = 0.8;

function around(ms, length) {
  const from = Math.round((ms - length * (1 - AHEAD)) / 1_000) * 1_000;
  return { from, to: from + length };
}

/** How far from now (ms) nine of ten pending messages reach: by months, then by hours, then by minutes. */
async function reach(api, topic) {
  const from = Math.floor(server.now() / HOUR) * HOUR; // the server counts whole hours without reading rows
  let most = null, ms = 0;
  for (const [length, width] of [[LONGEST, 30 * DAY], [30 * DAY, 6 * HOUR], [6 * HOUR, 2 * MINUTE]]) {
    const { buckets, total } = await api.get("/v1/timeline/density", { from, to: from + length, bucket: width / 1_000, topic });
    most ??= Math.ceil(0.9 * total);
    let sum = 0;
    const index = buckets.findIndex((one) => (sum += one.count) >= most);
    ms = (index + 1) * width - (server.now() - from);
    if (index > 0) break;
  }
  return Math.max(0, ms);
}

/** The range in buckets. The two answers are of two moments, so what went out between them may be missing for once. */
async function density(api, { from, to }, width, topic) {
  const first = Math.floor(from / width) * width, now = server.now();
  const query = { from: first, bucket: width / 1_000, topic };
  const [ahead, all] = await Promise.all([
    api.get("/v1/timeline/density", { ...query, to }),
    first < now ? api.get("/v1/timeline/density", { ...query, to: Math.min(to, Math.ceil(now / width) * width), past: true }) : null,
  ]);
  return ahead.buckets.map((one, index) => {
    const at = Date.parse(one.at);
    return { at, until: Math.min(at + width, to), ahead: one.count, past: Math.max(0, (all?.buckets[index]?.count ?? 0) - one.count) };
  });
}
