// Jobs of the pipeline: what splits and drops slices, how far it is, and what ended how.

import { dialog, notice } from "./ask.js";
import { button, field, fill, h, table } from "./dom.js";
import { count, instant } from "./format.js";

export async function open(root, { api, every }) {
  const body = h("div");
  fill(root, h("div", { class: "row" }, h("h1", {}, "Jobs"), button("Split a slice…", () => split()), button("Expire old slices…", () => expire())), body);

  async function load() {
    const { jobs } = await api.get("/v1/jobs", { limit: 200 });
    fill(body, jobs.length ? table([
      ["Id", (one) => h("code", {}, one.id), "nowrap"],
      ["Kind", (one) => one.kind],
      ["State", (one) => h("span", { class: "tag" }, one.state)],
      ["About", (one) => about(one), "text"],
      ["Progress", progress, "nowrap"],
      ["Began", (one) => instant(one.created_at), "nowrap"],
      ["Ended", (one) => (one.ended_at ? instant(one.ended_at) : "–"), "nowrap"],
      ["Came of it", (one) => one.detail ?? (one.rows === undefined ? "" : `${count(one.rows)} rows`), "text"],
      ["Log", (one) => (one.run === "server" ? button("Show", () => log(one)) : "–")],
    ], jobs, "Jobs") : h("p", { class: "empty" }, "No jobs."));
  }

  async function log(job) {
    const written = await api.get(`/v1/jobs/${encodeURIComponent(job.id)}/log`).catch((problem) => problem.message);
    await dialog(`What the program of ${job.id} wrote`, h("pre", {}, written || "Nothing yet."), { act: null });
  }

  const begin = async (title, children, wish) => {
    const job = await dialog(title, children, { act: "Begin", answer: (form) => api.post("/v1/jobs", wish(form)) });
    if (job) { notice(`Job ${job.id} has begun`); await load(); }
  };
  const split = () => begin("Split a slice", [
    h("p", { class: "faint" }, "The server runs its Spark program for it."),
    field("Slice (its start)", "slice", { required: true, placeholder: "2026-12-24T09:00:00Z" }),
    field("Parts", "parts", { value: "4", inputmode: "numeric" }),
  ], (form) => ({ kind: "split", slice: form.elements.slice.value.trim(), parts: Number(form.elements.parts.value) }));
  const expire = () => begin("Expire old slices", h("p", {}, "What is past its retention is archived, if there is an archive, and dropped."), () => ({ kind: "expire" }));

  await load();
  every(2_000, load);
}

const about = (one) => (one.slice ? `slice from ${instant(one.slice.start)}` : one.slices ? `${count(one.slices.length)} slices` : "");

function progress(one) {
  if (!one.progress || !one.progress.total) return "–";
  const { done, total } = one.progress;
  return h("progress", { max: String(total), value: String(done), "aria-label": `${count(done)} of ${count(total)}` });
}
