// One message whole, and what can still be done with it.

import { answer, denied, part } from "./api.js";
import { attempt, dialog, notice, reasons } from "./ask.js";
import { button, facts, field, fill, h, table } from "./dom.js";
import { away, instant, span, server, toApi } from "./format.js";
import { payload } from "./payload.js";

export async function openMessage(root, { api, every }, id) {
  const path = `/v1/messages/${part(id)}`;
  let etag = null;
  let shown = null;

  async function load() {
    const [response, place] = await Promise.all([
      api.fetch("GET", path),
      api.get(`${path}/explain`).catch(denied),
    ]);
    etag = response.headers.get("ETag");
    const text = await response.text();
    // Drawn anew only if something is: its reader may have chosen another view of the payload.
    const now = text + JSON.stringify(place);
    if (now !== shown) draw(answer(text), place);
    shown = now;
  }

  function draw(message, place) {
    const isPending = message.state === "pending";
    fill(root,
      h("h1", {}, message.topic, " ", h("span", { class: "tag", id: "state" }, message.state)),
      h("div", { class: "row" },
        button("Cancel", cancel, "danger", { disabled: !isPending }),
        button("Move…", move, null, { disabled: !isPending }),
        button("Send now", now, null, { disabled: !isPending }),
        button("Load again", () => attempt(load, null))),
      h("div", { class: "columns" },
        h("section", {}, h("h2", {}, "Message"), told(message), headers(message.headers)),
        h("section", {}, h("h2", {}, "Payload"), payload(message)),
        place ? h("section", {}, h("h2", {}, "Where it lies"), where(place)) : null,
        message.deliveries?.length ? h("section", {}, h("h2", {}, "Deliveries"), deliveries(message)) : null));
  }

  async function cancel() {
    const sure = await dialog("Cancel this message?", h("p", {}, "Nobody will get it."), { act: "Cancel it", kind: "danger" });
    if (sure) await change(() => api.remove(path), "Cancelled: nobody will get it");
  }

  async function move() {
    await dialog("Move", [
      field("To (a time)", "deliver_at", { placeholder: "2026-12-24 09:00, or with a zone" }),
      field("or in", "deliver_in", { placeholder: "2h" }),
    ], {
      act: "Move it",
      answer: async (form) => {
        const at = form.elements.deliver_at.value.trim(), delay = form.elements.deliver_in.value.trim();
        const moved = await api.patch(path, { ...(at ? { deliver_at: toApi(at) } : {}), ...(delay ? { deliver_in: delay } : {}) }, etag ? { "If-Match": etag } : {});
        notice(`Moved to ${instant(moved.deliver_at)}`);
        await load();
        return true;
      },
    });
  }

  const now = () => change(() => api.patch(path, { deliver_in: 0 }), "It is on its way");

  /** Too late is an answer like another: it is said as the API says it, and the page shows how it stands. */
  async function change(action, done) {
    try {
      await action();
      notice(done);
    } catch (error) {
      notice(reasons(error), "bad");
    }
    await attempt(load, null);
  }

  await load();
  every(5_000, async () => { if (document.querySelector("dialog") === null && root.querySelector("#state")?.textContent === "pending") await load(); });
}

function told(message) {
  return facts([
    ["Id", h("code", {}, message.id)],
    ["Due", `${instant(message.deliver_at)} (${away(message.deliver_at, server.now())})`],
    ["As asked", message.local],
    ["Dispatched", message.dispatched_at && instant(message.dispatched_at)],
    ["Cancelled", message.cancelled_at && instant(message.cancelled_at)],
    ["QoS", message.qos],
    ["Retained", message.retain ? "yes" : null],
    ["Expires", message.expires_in === undefined ? null : `${span(message.expires_in * 1_000)} after due`],
    ["If late", message.late],
    ["Content type", message.content_type],
    ["Schedule", message.schedule && h("a", { href: `#/schedules/${part(message.schedule)}` }, message.schedule)],
    ["Posted to", message.deliver_to],
    ["Publisher", message.publisher],
  ]);
}

function headers(given) {
  const pairs = Object.entries(given ?? {});
  return pairs.length ? [h("h2", {}, "Headers"), facts(pairs)] : null;
}

function where(place) {
  const first = parseInt(place.id.slice(0, 12), 16);  // an id begins with the time that its message was first put at
  return facts([
    ["Position", h("code", {}, `${instant(place.position.at)} #${place.position.seq}`)],
    ["Slice", place.slice && h("a", { href: `#/slices/${part(place.slice)}` }, instant(place.slice))],
    ["Shard", place.shard === undefined ? null : `${place.shard} (${place.structure})${place.borrowed ? ", borrowed" : ""}`],
    ["In RAM", place.in_wheel ? "yes" : place.enters_ram_at ? `from ${instant(place.enters_ram_at)}` : "no"],
    ["Held", place.held ? "waits, as the clock was set back" : null],
    ["Moved from", first === Date.parse(place.position.at) ? null : `${instant(first)}, where it was put first`],
  ]);
}

function deliveries(message) {
  return [table([
    ["To", (one) => (one.group ? `${one.group} (${one.filter})` : one.session), "text"],
    ["State", (one) => h("span", { class: "tag" }, one.state)],
    ["Attempts", (one) => one.attempts ?? "–", "number"],
    ["Comes again", (one) => (one.retry_at ? h("a", { href: `#/retries?id=${part(message.id)}` }, instant(one.retry_at)) : "–"), "nowrap"],
    ["Reason", (one) => one.reason ?? "–", "text"],
  ], message.deliveries, "Deliveries"), message.deliveries_truncated ? h("p", { class: "faint" }, "There are more.") : null];
}
