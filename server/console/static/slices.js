// How the timeline is cut: slices against the split bound, and the shards of one against their caps.

import { part } from "./api.js";
import { attempt } from "./ask.js";
import { button, facts, fill, h, moment, table, tag } from "./dom.js";
import { both, bytes, count, instant, percent, span } from "./format.js";
import { addressOf, placeOf } from "./history.js";

const PAGE = 1_000;

export async function open(root, context) {
  const [start] = context.path;
  return start ? openOne(root, context, start) : openList(root, context);
}

/** How full something is, in words and as a bar. */
function fullness(value, most, as = count) {
  const text = `${as(value)} of ${as(most)}`;
  return h("div", { class: "fullness", title: text }, h("span", {}, percent(value / most)),
    h("meter", { min: "0", max: String(most), high: String(most * 0.9), value: String(Math.min(value, most)), "aria-label": text }));
}

/** The place furthest behind, while slices stay for it alone. */
function holder({ group, seconds }) {
  const place = placeOf(group);
  return h("p", { class: "warn" }, `Old slices are kept ${span(seconds * 1_000)} longer than their retention, because `, h("a", { href: addressOf(place) }, place.name), " has not finished their messages.");
}

async function openList(root, { api, every }) {
  const body = h("div"), rows = [], order = { sort: "From" };
  let cursor = null, reading = 0;
  fill(root, h("h1", {}, "Slices"), body);

  /** The page behind `after`, or all anew; of several readings at once the last one counts. */
  async function read(after) {
    const turn = ++reading;
    const [page, { jobs }] = await Promise.all([api.get("/v1/slices", { limit: PAGE, cursor: after }), api.get("/v1/jobs", { limit: 100 }).catch(() => ({ jobs: [] }))]);
    if (turn !== reading) return;
    if (after === null) rows.length = 0;
    const cut = new Set(jobs.filter((job) => job.kind === "split" && !job.ended_at).map((job) => job.slice?.start));
    rows.push(...page.slices);
    cursor = page.next;
    const wrong = [[rows.filter((one) => one.count > page.split_above && !cut.has(one.start)), "overfull"], [rows.filter((one) => one.unreadable), "with unreadable rows"]];
    fill(body, h("p", { class: "faint" }, `The timeline is stored in slices of time. A slice with more than ${count(page.split_above)} rows is split, and a slice is dropped as a whole when its retention is over. Rows are messages, with those that were cancelled or moved.`),
      page.held_by ? holder(page.held_by) : null,
      wrong.filter(([which]) => which.length).map(([which, what]) => h("p", { class: "warn" }, `${count(which.length)} ${what}: `,
        which.slice(0, 5).map((one, index) => [index ? ", " : "", h("a", { href: address(one) }, instant(one.start))]), which.length > 5 ? ", …" : "")),
      rows.length ? [
        h("p", {}, `Slices: ${count(rows.length)} · messages: ${count(sum("live"))} · ${bytes(sum("bytes"))} · from ${instant(rows[0].start)} to ${instant(rows.at(-1).end)}`),
        drawn(page.split_above, cut),
      ] : h("p", { class: "empty" }, "Nothing is stored yet. The first scheduled message opens the first slice."),
      cursor ? button("Load more", () => attempt(() => read(cursor), null)) : null);
  }

  const sum = (name) => rows.reduce((all, one) => all + one[name], 0);
  const drawn = (bound, cut) => table([
    ["From", (one) => h("a", { href: address(one) }, instant(one.start)), "nowrap", (one) => one.start],
    ["Length", (one) => span(length(one)), "nowrap", length],
    ["Messages", (one) => count(one.live), "number", (one) => one.live],
    ["Rows", (one) => count(one.count), "number", (one) => one.count],
    ["Until split", (one) => fullness(one.count, bound), null, (one) => one.count],
    ["Size", (one) => bytes(one.bytes), "number", (one) => one.bytes],
    ["Shards", (one) => count(one.shards), "number", (one) => one.shards],
    ["State", (one) => [
      one.count > bound ? tag("overfull", "warn") : null,
      cut.has(one.start) ? tag("being split") : null,
      one.borrowed ? tag(`reads ${one.borrowed} shards of a split slice`) : null,
      one.unreadable ? tag(`${one.unreadable} unreadable`, "bad") : null,
    ]],
  ], rows, "Slices", order);

  await read(null);
  every(10_000, async () => { if (rows.length <= PAGE) await read(null); });
}

const address = (one) => `#/slices/${part(one.start)}`;
const length = (one) => Date.parse(one.end) - Date.parse(one.start);

async function openOne(root, { api, every }, start) {
  const order = { sort: "Shard" };

  async function load() {
    const one = await api.get(`/v1/slices/${part(start)}`);
    fill(root, h("h1", {}, `Slice from ${instant(one.start)}`),
      h("div", { class: "row" }, h("a", { href: `#/messages?${new URLSearchParams({ due_from: one.start, due_to: one.end, state: "all" })}` }, "Its messages"),
        h("a", { href: `#/jobs?${new URLSearchParams({ split: one.start })}` }, "Split it…")),
      facts([
        ["From", both(one.start)],
        ["To", `${both(one.end)}, ${span(length(one))}`],
        ["Messages", `${count(one.live)}${one.count > one.live ? `, and ${count(one.count - one.live)} cancelled or moved` : ""}`],
        ["Size", bytes(one.bytes)],
        ["Generation", one.generation],
      ]), h("h2", {}, "Shards"), table([
        ["Shard", (each) => each.shard, "number", (each) => each.shard],
        ["Topics", (each) => h("code", {}, each.structure), "text", (each) => each.structure],
        ["Messages", (each) => count(each.live), "number", (each) => each.live],
        ["Rows", (each) => fullness(each.count, each.cap), null, (each) => each.count],
        ["Size", (each) => fullness(each.bytes, each.cap_bytes, bytes), null, (each) => each.bytes],
        ["First due", (each) => moment(each.first?.at), "nowrap", (each) => each.first?.at],
        ["Last due", (each) => moment(each.last?.at), "nowrap", (each) => each.last?.at],
        ["State", (each) => [each.sealed ? tag("sealed: takes no more messages") : tag("open"), each.borrowed ? tag("of a split slice") : null,
          each.unreadable.length ? tag(`${each.unreadable.length} unreadable`, "bad") : null]],
      ], one.shards, "Shards", order));
  }

  await load();
  every(5_000, load);
}
