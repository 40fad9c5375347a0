// Live: messages of a topic filter as they are dispatched, the newest on top; and a box to publish one.

import { part } from "./api.js";
import { attempt, reasons } from "./ask.js";
import { button, entries, field, fill, h, submitted, table } from "./dom.js";
import { count, instant, server, span } from "./format.js";
import { events } from "./live.js";
import { glimpse } from "./payload.js";

const ROWS = 200, DRAW_MS = 250, RETRY_MS = 2_000, RETRY_MS_MAX = 60_000;

export function open(root, { api, live, query }) {
  let rows = [], topic = null, stream = null, isPaused = false, missed = 0, timer = null, isSilent = false;
  const said = h("p", { class: "faint", role: "status" }), body = h("div"), tools = h("span", { class: "row" });
  const form = h("form", { class: "row", role: "search", "aria-label": "Live", onsubmit: submitted(() => start(entries(form).topic ?? "#")) },
    field("Topic filter", "topic", { value: query.topic ?? "#", placeholder: "orders/#" }), h("button", { class: "act" }, "Start"), tools);
  const box = h("form", { class: "row", "aria-label": "Publish", onsubmit: submitted(publish) },
    field("Topic", "to", { required: true, placeholder: "orders/17" }), field("Payload", "payload"), field("Delay (empty: now)", "deliver_in", { placeholder: "10s" }), h("button", {}, "Publish"));
  fill(root, h("h1", {}, "Live"), form, said, h("details", { open: true }, h("summary", {}, "Publish a message"), box), body);

  function start(wanted) {
    topic = wanted;
    rows = [];
    isPaused = false;
    missed = 0;
    listen();
  }

  /** Until it is stopped: what ends by itself begins again. */
  async function listen() {
    stream?.abort();
    stream = new AbortController();
    const { signal } = stream;
    for (let wait = RETRY_MS; !signal.aborted; wait = Math.min(2 * wait, RETRY_MS_MAX)) {
      try {
        const response = await api.fetch("GET", "/v1/tail", { query: { topic }, signal });
        wait = RETRY_MS;
        say(topic === "#" ? "Listening to all topics" : `Listening to ${topic}`);
        draw();
        for await (const [event, data] of events(response.body)) hear(event, JSON.parse(data));
        say("The server ended the stream: trying again");
      } catch (error) {
        if (signal.aborted) return;
        if (error.status) { stop(reasons(error)); return; }
        say("The connection is lost: trying again");
      }
      await new Promise((done) => setTimeout(done, wait));
    }
  }

  /** A connection that leads nowhere does not end: the server's figures, which come each second, tell. */
  const unfollow = live.on((figures) => {
    if (stream && isSilent && figures) listen();
    isSilent = stream !== null && !figures;
    if (isSilent) say("No answer from the server");
  });

  function stop(text) {
    stream?.abort();
    stream = null;
    say(text);
    draw();
  }

  const say = (text) => fill(said, text);

  function hear(event, data) {
    if (event !== "message" && event !== "skipped") return;
    rows.unshift({ ...data, event, heard: server.now() });
    if (isPaused) missed += 1;
    rows.length = Math.min(rows.length, isPaused ? 2 * ROWS : ROWS);
    timer ??= setTimeout(() => { timer = null; draw(); }, DRAW_MS);
  }

  function draw() {
    fill(tools, stream ? [button(isPaused ? `Resume${missed ? ` (${count(missed)} new)` : ""}` : "Pause", pause), button("Stop", () => stop("Stopped"))] : null,
      rows.length ? button("Clear", () => { rows = []; draw(); }) : null);
    if (isPaused || !document.getSelection().isCollapsed) return;
    fill(body, rows.length ? drawn(rows.slice(0, ROWS)) : h("p", { class: "empty" }, stream ? "Nothing yet. Messages appear here when they are dispatched." : "Press Start to see messages as they are dispatched."));
  }

  function pause() {
    isPaused = !isPaused;
    missed = 0;
    draw();
  }

  async function publish() {
    const { to: topic, deliver_in } = entries(box), payload = box.elements.payload.value;
    await attempt(() => api.post("/v1/messages", { topic, payload, ...(deliver_in ? { deliver_in } : {}) }), (one) => (deliver_in ? `Scheduled for ${instant(one.deliver_at)}` : "Published"));
  }

  start(query.topic ?? "#");
  return () => { unfollow(); stream?.abort(); clearTimeout(timer); };
}

const drawn = (rows) => table([
  ["Seen", (one) => instant(Math.round(one.heard)), "nowrap"],
  ["Topic", (one) => (one.event === "skipped" ? h("em", {}, skipped(one)) : one.id ? h("a", { href: `#/messages/${part(one.id)}` }, one.topic) : one.topic), "text"],
  ["Payload", (one) => (one.event === "skipped" ? "" : h("code", {}, glimpse(one), one.is_cut ? " …" : "")), "text"],
  ["Late by", (one) => (one.event === "skipped" ? "" : span(one.late_ms)), "number"],
  ["QoS", (one) => one.qos ?? "", "number"],
], rows, "Messages as they are dispatched");

const skipped = ({ messages }) => (messages === null ? "Some messages were too fast to be shown (all topics)" : `${count(messages)} messages were too fast to be shown (all topics)`);
