// How the timeline is cut: slices against the split bound, and the shards of one against their caps.

import { part } from "./api.js";
import { attempt } from "./ask.js";
import { button, facts, fill, h, table } from "./dom.js";
import { bytes, count, instant, span } from "./format.js";

const PAGE = 200;

export async function open(root, context) {
  const [start] = context.path;
  return start ? openOne(root, context, start) : openList(root, context);
}

const fullness = (value, most, what) => h("meter", { min: "0", max: String(most), high: String(most * 0.9), value: String(Math.min(value, most)), "aria-label": what, title: what });

/** Who is furthest behind, while slices stay for it alone. */
const holder = ({ group, seconds }) => h("p", { class: "warn" }, "Slices are kept for ", group.startsWith("$") ? group : h("a", { href: `#/groups/${part(group)}` }, group),
  `, which is behind: for ${span(seconds * 1_000)} longer than their retention.`);

async function openList(root, { api, every }) {
  const body = h("div"), rows = [];
  let cursor = null;
  fill(root, h("h1", {}, "Slices"), body);

  async function more() {
    const page = await api.get("/v1/slices", { limit: PAGE, cursor });
    rows.push(...page.slices);
    cursor = page.next;
    const jobs = await api.get("/v1/jobs", { limit: 100 }).catch(() => ({ jobs: [] }));
    const cut = new Set(jobs.jobs.filter((job) => job.kind === "split" && !job.ended_at).map((job) => job.slice?.start));
    fill(body, page.held_by ? holder(page.held_by) : null, rows.length ? drawn(rows, page.split_above, cut) : h("p", { class: "empty" }, "No slices: nothing is stored."),
      cursor ? button("More", () => attempt(more, null)) : null);
  }

  const drawn = (slices, splitAbove, cut) => table([
    ["From", (one) => h("a", { href: `#/slices/${part(one.start)}` }, instant(one.start)), "nowrap"],
    ["Length", (one) => span(Date.parse(one.end) - Date.parse(one.start)), "nowrap"],
    ["Messages", (one) => count(one.live), "number"],
    ["Rows", (one) => count(one.count), "number"],
    ["Of the split bound", (one) => fullness(one.count, splitAbove, `${count(one.count)} of ${count(splitAbove)} rows`)],
    ["Bytes", (one) => bytes(one.bytes), "number"],
    ["Shards", (one) => count(one.shards), "number"],
    ["Marks", (one) => [
      one.count > splitAbove ? h("span", { class: "tag warn" }, "overfull") : null,
      cut.has(one.start) ? h("span", { class: "tag" }, "split in progress") : null,
      one.borrowed ? h("span", { class: "tag" }, `${one.borrowed} borrowed`) : null,
      one.unreadable ? h("span", { class: "tag bad" }, `${one.unreadable} unreadable`) : null,
    ], "nowrap"],
  ], slices, "Slices");

  await more();
  every(10_000, async () => { if (rows.length <= PAGE) { rows.length = 0; cursor = null; await more(); } });
}

async function openOne(root, { api, every }, start) {
  const body = h("div");
  fill(root, h("h1", {}, `Slice from ${instant(start)}`), body);

  async function load() {
    const one = await api.get(`/v1/slices/${part(start)}`);
    fill(body, facts([
      ["To", instant(one.end)],
      ["Generation", one.generation],
      ["Messages", count(one.live)],
      ["Rows", count(one.count)],
      ["Bytes", bytes(one.bytes)],
    ]), h("p", {}, h("a", { href: `#/messages?${new URLSearchParams({ due_from: one.start, due_to: one.end })}` }, "Its messages")),
    h("h2", {}, "Shards"), table([
      ["Shard", (each) => each.shard, "number"],
      ["Structure", (each) => h("code", {}, each.structure), "text"],
      ["Messages", (each) => count(each.live), "number"],
      ["Rows of the cap", (each) => fullness(each.count, each.cap, `${count(each.count)} of ${count(each.cap)} rows`)],
      ["Bytes of the cap", (each) => fullness(each.bytes, each.cap_bytes, `${bytes(each.bytes)} of ${bytes(each.cap_bytes)}`)],
      ["First", (each) => (each.first ? instant(each.first.at) : "–"), "nowrap"],
      ["Last", (each) => (each.last ? instant(each.last.at) : "–"), "nowrap"],
      ["Marks", (each) => [each.sealed ? h("span", { class: "tag" }, "sealed") : null, each.borrowed ? h("span", { class: "tag" }, "borrowed") : null,
        each.unreadable.length ? h("span", { class: "tag bad" }, `${each.unreadable.length} unreadable`) : null], "nowrap"],
    ], one.shards, "Shards"));
  }

  await load();
  every(5_000, load);
}
