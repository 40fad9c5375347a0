// A message of one's own: topic, payload and a time.

import { parse, part } from "./api.js";
import { notice, reasons } from "./ask.js";
import { entries, field, fill, h } from "./dom.js";
import { instant, toApi, zone } from "./format.js";

export function openNew(root, { api, query, go }) {
  const said = h("p", { class: "field-error", role: "alert" });
  const form = h("form", { class: "grid", onsubmit: (event) => { event.preventDefault(); send(); } },
    field("Topic", "topic", { value: query.topic, required: true, placeholder: "orders/17/remind" }),
    field("In", "deliver_in", { placeholder: "15m" }),
    field(`or at (${zone.name})`, "deliver_at", { value: query.deliver_at, placeholder: "2026-12-24 09:00" }),
    field("QoS", "qos", { value: "1", options: ["0", "1", "2"] }),
    field("Key (optional)", "key", { placeholder: "order-17" }),
    field("Expires in (optional)", "expires_in", { placeholder: "1h after due" }),
    field("Payload", "payload", { type: "area", wide: true }),
    field("Payload type", "as", { options: ["text", "JSON", "base64"] }),
    h("div", { class: "wide" }, said, h("button", { class: "act" }, "Schedule")));
  fill(root, h("h1", {}, "New message"), form);

  async function send() {
    said.textContent = "";
    try {
      const answer = await api.post("/v1/messages", body(entries(form), form.elements.payload.value));
      notice(`Scheduled for ${instant(answer.deliver_at)}`);
      go(`/messages/${part(answer.id)}`);
    } catch (error) {
      said.textContent = reasons(error);
    }
  }
}

/** The request: an empty payload is an empty text; what is empty else is left out. Throws SyntaxError. */
function body({ as, deliver_at, ...rest }, text) {
  const wish = { ...rest, qos: Number(rest.qos), payload: as === "JSON" ? parse(text) : text };
  // A JSON text that is a string goes as JSON, not as the text in it.
  if (as === "JSON" && typeof wish.payload === "string") wish.encoding = "json";
  if (as === "base64") wish.encoding = "base64";
  if (deliver_at) wish.deliver_at = toApi(deliver_at);
  return wish;
}
