// What a server shows that holds nothing yet: a first message, by form, by curl and by the client for Python.

import { parse, part } from "./api.js";
import { notice, reasons } from "./ask.js";
import { copy, curl } from "./copy.js";
import { button, entries, field, fill, h, submitted } from "./dom.js";
import { count, instant } from "./format.js";

/** Draws it; true. */
export function openFirst(root, { api, go }) {
  const said = h("p", { class: "field-error", role: "alert" });
  const form = h("form", { class: "grid", onsubmit: submitted(send) },
    field("Topic", "topic", { required: true, value: "orders/17/remind" }),
    field("Deliver in", "deliver_in", { required: true, value: "5s" }),
    field("Payload", "payload", { value: '{"order": 17}' }),
    h("div", { class: "wide" }, said, h("button", { class: "act" }, "Schedule it")));

  async function send() {
    said.textContent = "";
    try {
      const { id, deliver_at: at, claims } = await api.post("/v1/messages", { ...entries(form), payload: payload(form.elements.payload.value) }, { claims: true });
      const places = claims.groups + claims.endpoints + claims.sessions;
      notice(`Due at ${instant(at)}. ${places ? `${count(places)} ${places === 1 ? "place" : "places"} would get it.` : "Nobody would get it: its topic has no subscriber yet."}`);
      go(`/messages/${part(id)}`);
    } catch (error) {
      fill(said, reasons(error));
    }
  }

  const hasKey = Boolean(api.key);
  fill(root, h("h1", {}, "Overview"),
    h("p", {}, "This server has no messages yet. Send it a message and a time: it delivers the message at that time to all subscribers of its topic."),
    h("div", { class: "columns" },
      h("div", {},
        h("section", {}, h("h2", {}, "Send a first message"), form),
        h("section", {}, h("h2", {}, "Next"), h("ul", {},
          h("li", {}, h("a", { href: "#/endpoints" }, "Endpoints"), ": have messages posted to a URL."),
          h("li", {}, h("a", { href: "#/schedules/new" }, "A schedule"), ": a message every night, or every five minutes."),
          h("li", {}, h("a", { href: "/docs" }, "The API"), " of this server, call by call."),
          h("li", {}, "The tutorial: ", h("code", {}, "docs/tutorial.md"), " in the repository.")))),
      h("div", {},
        code("The same with curl", hasKey && "Set FASTI_KEY to the key that you gave this page.",
          curl("/v1/messages", { topic: "orders/17/remind", payload: { order: 17 }, deliver_in: "5s" }, hasKey)),
        code("Send and receive in Python", `After: pip install fasti-client.${hasKey ? " It reads FASTI_KEY, too." : ""}`,
          "import fasti", "", `with fasti.sync.Client("${location.origin}") as c:`, '    c.messages.schedule("orders/17/remind", {"order": 17}, delay=5)',
          '    for d in c.subscribe("orders/+/remind", session="shop"):', '        print(d.json(), "late by", d.lateness, "acked:", d.ack())'))));
  return true;
}

/** Lines to be copied, and what to do before. */
const code = (title, before, ...lines) => h("section", {}, h("h2", {}, title), before && h("p", { class: "faint" }, before), h("pre", { tabindex: "0" }, lines.join("\n")),
  h("p", {}, button("Copy", () => copy(lines.join("\n"), title.toLowerCase()), null, { "aria-label": `Copy: ${title}` })));

/** A payload as JSON, if it is that. */
function payload(text) {
  try { return parse(text); } catch { return text; }
}
