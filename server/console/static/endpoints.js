// Endpoints: where messages are posted, how many of the last posts failed and why, and how far behind they are.

import { part } from "./api.js";
import { attempt, notice } from "./ask.js";
import { button, facts, fill, h, table } from "./dom.js";
import { count, instant, span } from "./format.js";
import { History, lagLine, lagMessages, lagSeconds } from "./lag.js";
import { kept, rewind } from "./sessions.js";

const SHOWN = 200;

export async function open(root, context) {
  const [name] = context.path;
  return name ? openOne(root, context, name) : openList(root, context);
}

const failing = ({ failing: { share, of, last_reason: reason } }) => {
  if (!of) return h("span", { class: "faint" }, "nothing posted");
  const told = `${Math.round(share * 100)} % of ${of}`;
  return share ? h("span", { class: share < 1 ? "warn" : "bad" }, `${told}: ${reason}`) : told;
};

async function openList(root, { api, every }) {
  const history = new History(), body = h("div");
  fill(root, h("h1", {}, "Endpoints"), body);

  async function load() {
    const page = await api.get("/v1/endpoints", { limit: SHOWN });
    for (const one of page.endpoints) history.add(one.name, one.lag_messages);
    fill(body, page.endpoints.length ? drawn(page.endpoints) : h("p", { class: "empty" }, "No endpoints."), page.next ? h("p", { class: "faint" }, `The first ${SHOWN} by name.`) : null);
  }

  const drawn = (rows) => table([
    ["Endpoint", (one) => h("a", { href: `#/endpoints/${part(one.name)}` }, one.name), "text"],
    ["State", (one) => h("span", { class: "tag" }, one.state)],
    ["Failed of the last posts", failing, "text"],
    ["Lag", lagMessages, "number"],
    ["Time", lagSeconds, "nowrap"],
    ["History", (one) => lagLine(history, one.name)],
    ["In flight", (one) => count(one.in_flight), "number"],
    ["Retries", (one) => count(one.undone?.retries), "number"],
    ["Delivered", (one) => count(one.delivered), "number"],
  ], rows, "Endpoints");

  await load();
  every(3_000, load);
}

async function openOne(root, { api, every }, name) {
  const path = `/v1/endpoints/${part(name)}`, history = new History(), body = h("div");
  fill(root, h("h1", {}, name), body);

  async function load() {
    const one = await api.get(path);
    history.add(name, one.lag_messages);
    fill(body, h("div", { class: "row" },
      one.state === "paused" ? button("Resume", () => change("resume", "It goes on")) : button("Pause", () => change("pause", "It is paused")),
      button("Test", test), button("Rewind…", () => rewind(api, path, load))),
    facts([
      ["URL", h("code", {}, one.url)],
      ["State", one.reason ? `${one.state}: ${one.reason}` : one.state],
      ["Failed of the last posts", failing(one)],
      ["Lag", `${lagMessages(one)} messages, ${lagSeconds(one)}`],
      ["History", lagLine(history, name)],
      ["In flight", `${count(one.in_flight)} of ${count(one.concurrency)}`],
      ["Retries", count(one.undone?.retries)],
      ["Next try", one.undone?.next_retry_at && instant(one.undone.next_retry_at)],
      ["Delivered", count(one.delivered)],
      ["Body", one.body === "envelope" ? "JSON with the payload in it" : "the payload"],
      ["A post may take", span(one.timeout * 1_000)],
      ["Tries at most", one.retry && (one.retry.max_attempts || "any number")],
      ["Retries after", one.retry?.backoff.map((s) => span(s * 1_000)).join(", ")],
      ["Rate", one.rate ? `${one.rate} a second` : "any"],
      ["Kept", one.expiry === "never" ? kept(one.expiry) : one.expiry && `${span(one.expiry * 1_000)} while it is paused`],
    ]));
  }

  async function change(verb, done) {
    await attempt(() => api.post(`${path}:${verb}`), done);
    await attempt(load, null);
  }

  async function test() {
    await attempt(async () => {
      const tried = await api.post(`${path}:test`);
      notice(tried.ok ? `It answered ${tried.status}` : `The post failed: ${tried.reason}`, tried.ok ? "good" : "bad");
    }, null);
  }

  await load();
  every(2_000, load);
}
