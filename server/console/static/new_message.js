// A message of one's own: where to, what, when, and then the rest.

import { denied, parse, part } from "./api.js";
import { notice, reasons } from "./ask.js";
import { button, entries, field, fill, h, submitted } from "./dom.js";
import { instant } from "./format.js";
import { whenFields, whenOf } from "./when.js";

const ENDPOINTS = 200;

export function openNew(root, { api, query, go }) {
  const said = h("p", { class: "field-error", role: "alert" });
  const known = h("datalist", { id: "endpoints" }), headers = h("div");
  const line = (name = "", value = "") => {
    const node = h("div", { class: "row header" }, input("Name", name), input("Value", value), button("Remove", () => node.remove(), null, { "aria-label": "Remove this header" }));
    return node;
  };
  const form = h("form", { class: "grid", onsubmit: submitted(send) },
    h("h2", { class: "wide" }, "Where to"),
    field("Topic", "topic", { value: query.topic, placeholder: "orders/17/remind" }),
    field("Post to (endpoint or URL)", "deliver_to", { value: query.deliver_to, list: "endpoints", placeholder: "billing" }), known,
    h("h2", { class: "wide" }, "What"),
    field("Payload", "payload", { type: "area", wide: true }),
    field("Payload type", "as", { options: ["text", "JSON", "base64"] }),
    h("h2", { class: "wide" }, "When"),
    whenFields(query.deliver_at, "Both empty: at once."),
    h("h2", { class: "wide" }, "Headers and key"),
    h("div", { class: "wide" }, headers, button("Add a header", () => { headers.append(line()); headers.lastChild.querySelector("input").focus(); })),
    field("Key", "key", { placeholder: "order-17" }), h("p", { class: "faint hint" }, "The same message with the same key is scheduled only once."),
    h("details", { class: "wide" }, h("summary", {}, "More: QoS, retain, spread, expiry, content type"), h("div", { class: "grid" },
      field("QoS", "qos", { options: [["0", "0: at most once"], ["1", "1: at least once"], ["2", "2: exactly once"]], value: "1" }),
      field("Retain", "retain", { options: [["", "no"], ["yes", "yes: new subscribers of its topic get it"]] }),
      field("Spread (up to this much later)", "spread", { placeholder: "5m" }),
      field("Expires after (counted from due)", "expires_in", { placeholder: "1h" }),
      field("If its time has passed", "late", { options: [["", "deliver it late"], ["drop", "drop it"]] }),
      field("Content type", "content_type", { placeholder: "text/plain" }))),
    h("div", { class: "wide" }, said, h("button", { class: "act" }, "Schedule")));
  fill(root, h("h1", {}, "New message"), form);
  api.get("/v1/endpoints", { limit: ENDPOINTS }).catch(denied).then((page) => fill(known, (page?.endpoints ?? []).map((one) => h("option", { value: one.name }))), () => {});

  async function send() {
    mark(form, said, []);
    try {
      const answer = await api.post("/v1/messages", body(form));
      notice(`Scheduled for ${instant(answer.deliver_at)}`);
      go(`/messages/${part(answer.id)}`);
    } catch (error) {
      mark(form, said, error.errors?.length ? error.errors : [{ detail: reasons(error) }]);
    }
  }
}

const input = (label, value) => h("label", {}, label, h("input", { value, autocomplete: "off", spellcheck: "false" }));

/** What the server refuses, said behind its field, or below the form where it has none. */
function mark(form, said, errors) {
  for (const old of form.querySelectorAll(".field-error:not([role])")) old.remove();
  for (const old of form.querySelectorAll(".invalid")) { old.classList.remove("invalid"); old.removeAttribute("aria-describedby"); }
  const others = [];
  for (const { field: name, detail } of errors) {
    const at = name && form.elements[name.split(/[.[]/)[0]];
    if (!at?.id) { others.push(name ? `${name}: ${detail}` : detail); continue; }
    at.classList.add("invalid");
    at.setAttribute("aria-describedby", `${at.id}-error`);
    at.closest("label").after(h("p", { class: "field-error hint", id: `${at.id}-error` }, detail));
    const fold = at.closest("details");
    if (fold) fold.open = true;
  }
  form.querySelector(".invalid")?.focus();
  fill(said, others.length ? others.join("; ") : errors.length ? "Not scheduled: see the marked fields." : "");
}

/** The request: an empty payload is an empty text; what is empty else is left out. Throws SyntaxError. */
function body(form) {
  const { as, deliver_at, deliver_in, retain, ...rest } = entries(form), text = form.elements.payload.value;
  const wish = { ...rest, ...whenOf({ deliver_in, deliver_at }), qos: Number(rest.qos), payload: as === "JSON" ? json(text) : text };
  // A JSON text that is a string goes as JSON, not as the text in it.
  if (as === "JSON" && typeof wish.payload === "string") wish.encoding = "json";
  if (as === "base64") wish.encoding = "base64";
  if (retain) wish.retain = true;
  const headers = [...form.querySelectorAll(".header")].map((row) => [...row.querySelectorAll("input")].map((one) => one.value)).filter(([name]) => name);
  if (headers.length) wish.headers = Object.fromEntries(headers);
  return wish;
}

function json(text) {
  try { return parse(text); } catch (error) { throw Object.assign(error, { errors: [{ field: "payload", detail: `no JSON: ${error.message}` }] }); }
}
