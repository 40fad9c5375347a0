// Jobs of the pipeline: what splits and drops slices, how far it is, and what ended how.

import { part } from "./api.js";
import { dialog, notice } from "./ask.js";
import { button, field, fill, h, moment, table, tag } from "./dom.js";
import { away, count, instant, percent, server, span } from "./format.js";

const SHOWN = 200;
const STATES = { done: "good", aborted: "bad" };

export async function open(root, { api, every, query }) {
  const body = h("div"), order = {};
  fill(root,
    h("div", { class: "row" }, h("h1", {}, "Jobs"), button("Split a slice…", () => split()), button("Drop old slices…", () => expire())),
    h("p", { class: "faint" }, "A job splits a slice that holds too many rows, or archives and drops slices that are past their retention. Where Spark is there, the server starts jobs by itself."), body);

  async function load() {
    const { jobs } = await api.get("/v1/jobs", { limit: SHOWN });
    fill(body, jobs.length ? table([
      ["Job", (one) => [one.kind === "expire" ? "drop old slices" : one.kind, h("div", { class: "faint" }, h("code", {}, one.id))], "text", (one) => one.kind],
      ["Slice", about, "text", (one) => one.slice?.start],
      ["State", (one) => tag(one.state, STATES[one.state]), null, (one) => one.state],
      ["Progress", progress, "nowrap"],
      ["Began", (one) => moment(one.created_at), "nowrap", (one) => one.created_at],
      ["Took", (one) => span((one.ended_at ? Date.parse(one.ended_at) : server.now()) - Date.parse(one.created_at)), "nowrap"],
      ["Result", (one) => one.detail ?? (one.rows === undefined ? "" : `${count(one.rows)} rows`), "text"],
      ["Actions", (one) => (one.run === "server" ? button("Log", () => log(one)) : "run by a client"), "actions"],
    ], jobs, "Jobs", order) : h("p", { class: "empty" }, "No jobs so far."));
  }

  async function log(job) {
    const written = await api.get(`/v1/jobs/${part(job.id)}/log`).catch((problem) => problem.message);
    await dialog(`Log of job ${job.id}`, h("pre", {}, written || "Nothing yet."), { act: null });
  }

  const begin = async (title, children, act, kind, wish) => {
    const job = await dialog(title, children, { act, kind, answer: (form) => api.post("/v1/jobs", wish(form)) });
    if (job) { notice(`Job ${job.id} has begun`); await load(); }
  };
  const split = (slice = "") => begin("Split a slice", [
    h("p", { class: "faint" }, "The server runs its Spark program, which cuts the slice into shorter ones. No message changes."),
    field("Slice (when it starts)", "slice", { value: slice, required: true, placeholder: "2026-12-24T09:00:00Z" }),
    field("Number of parts", "parts", { value: "4", inputmode: "numeric" }),
  ], "Split it", "act", (form) => ({ kind: "split", slice: form.elements.slice.value.trim(), parts: Number(form.elements.parts.value) }));
  const expire = () => begin("Drop old slices?", h("p", {}, "Slices that are past their retention are archived, if an archive is set, and dropped. This cannot be undone."), "Drop them", "danger", () => ({ kind: "expire" }));

  await load();
  every(2_000, load);
  if (query.split) split(query.split);
}

const about = (one) => (one.slice ? [h("a", { href: `#/slices/${part(one.slice.start)}` }, instant(one.slice.start)), one.parts ? ` into ${count(one.parts)}` : ""] : one.slices ? `${count(one.slices.length)} slices` : "");

function progress(one) {
  if (!one.progress || !one.progress.total) return one.ended_at ? "" : `not known yet, begun ${away(one.created_at, server.now())}`;
  const { done, total } = one.progress;
  return [h("progress", { max: String(total), value: String(done), "aria-label": `${count(done)} of ${count(total)}` }), ` ${percent(done / total)}`];
}
