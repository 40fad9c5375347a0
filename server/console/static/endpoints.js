// Endpoints: URLs that messages are posted to, what they answer, and how far behind they are.

import { denied, part } from "./api.js";
import { attempt, dialog, notice } from "./ask.js";
import { button, entries, field, fill, h, moment, table, tabs, tag } from "./dom.js";
import { count, span } from "./format.js";
import { history } from "./history.js";
import { openPlace } from "./one_place.js";
import { placed } from "./place.js";
import { columns, cutNote, placesOf, VIEWS } from "./places.js";

const REFRESH_MS = 3_000;
const SECRET_BYTES = 32;

export async function open(root, context) {
  const [name] = context.path;
  return name ? openOne(root, context, name) : openList(root, context);
}

async function openList(root, { api, every }) {
  const body = h("div"), order = { sort: "State" };
  let shown = 0;
  fill(root, h("h1", {}, "Endpoints"), tabs(VIEWS, "Endpoints"), body);

  async function load() {
    const [{ rows, cut, hidden }, past] = await Promise.all([placesOf(api, ["endpoint"]), history(api).catch(denied)]);
    shown = rows.length;
    fill(body, hidden.length ? h("p", { class: "empty" }, "Only a key with the scope admin may see endpoints.") : rows.length ? table([
      ["Endpoint", (row) => [h("div", {}, h("a", { href: row.href }, row.name)), h("code", { class: "faint" }, row.one.url)], "text", (row) => row.name],
      ["Last answers", ({ one }) => codes(one.last_answers), "nowrap"],
      ...columns(past?.points),
    ], rows, "Endpoints", order) : nothing(), cutNote(cut));
  }

  await load();
  every(REFRESH_MS, load, () => shown);
}

const nothing = () => h("div", { class: "empty" }, h("p", {}, "No endpoints. An endpoint is a URL with a name: messages with ", h("code", {}, "deliver_to"), " are posted there when they are due. This creates one:"),
  h("pre", { tabindex: "0" }, `curl -X PUT ${location.origin}/v1/endpoints/billing -H 'content-type: application/json' -d '{"url":"https://billing.example.com/hook"}'`));

/** An answer's status; its title says the rest. */
const code = ({ status, reason, seconds }) => {
  const node = tag(status ?? "no answer", reason ? "bad" : "good");
  node.title = `${reason ?? "done"}, after ${span(seconds * 1_000)}`;
  return node;
};

const codes = (answers) => answers.map((each) => [code(each), " "]);

const openOne = (root, context, name) => {
  const { api } = context, path = `/v1/endpoints/${part(name)}`;
  const order = {};
  let isOpen = false;

  async function test() {
    await attempt(async () => {
      const tried = await api.post(`${path}:test`);
      const took = `after ${span(tried.latency_ms)}`;
      notice(tried.ok ? `It answered ${tried.status} ${took}` : `The post failed ${took}: ${tried.reason}`, tried.ok ? "good" : "bad");
    }, null);
  }

  /** A PUT keeps nothing but the secret: all else is sent again. Values of headers are never shown, so they are asked for. */
  async function rotate(load) {
    const one = await api.get(path), fresh = `whsec_${btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(SECRET_BYTES))))}`;
    const done = await dialog("Rotate the secret", [
      h("p", {}, one.secret ? "The server signs with both secrets for a day. Give the receiver the new one in that time." : "Posts are not signed yet. From now on they are."),
      h("p", { class: "faint" }, "Copy it now: the server never shows it again."),
      field("New secret", "secret", { value: fresh, required: true }),
      one.headers.map((header) => field(`Value of the header ${header}, which the server does not show`, `header-${header}`, { type: "password", required: true })),
    ], {
      act: one.secret ? "Rotate" : "Sign posts",
      answer: async (form) => {
        const { secret } = entries(form), { url, concurrency, timeout, body, retry, expiry } = one;
        const headers = Object.fromEntries(one.headers.map((header) => [header, form.elements[`header-${header}`].value]));
        await api.put(path, { url, concurrency, timeout, body, retry, expiry, secret, headers, ...(one.rate ? { rate: one.rate } : {}) });
        return true;
      },
    });
    if (done) { notice(one.secret ? "The new secret signs; for a day the former one signs too" : "Posts are signed"); await attempt(load, null); }
  }

  /** Codes, and on demand the rest. */
  function answers(last) {
    const rest = table([
      ["When", (each) => moment(each.at), "nowrap", (each) => each.at],
      ["Answer", code, "nowrap", (each) => each.status],
      ["Took", (each) => span(each.seconds * 1_000), "number", (each) => each.seconds],
      ["Reason", (each) => each.reason ?? "–", "text", (each) => each.reason],
      ["Message", (each) => h("a", { class: "mono", href: `#/messages/${each.id}` }, each.id), "nowrap"],
    ], last, "Last answers", order);
    return [h("p", {}, codes(last)), h("details", { open: isOpen, ontoggle: (event) => { isOpen = event.target.open; } }, h("summary", {}, "Details"), rest)];
  }

  return openPlace(root, context, {
    read: async () => placed("endpoint", await api.get(path)),
    acts: (load) => [button("Test post", test), button("Rotate secret…", () => attempt(() => rotate(load), null))],
    settings: (one) => [
      ["URL", h("code", {}, one.url)],
      ["Posts at a time", `${count(one.in_flight)} of ${count(one.concurrency)} in use`],
      ["Signed with", one.secret ? [h("code", {}, one.secret.fingerprint), " (fingerprint)"] : "no secret: posts are not signed"],
      ["Former secret", one.secret?.former && [h("code", {}, one.secret.former), " signs as well until ", moment(one.secret.former_until)]],
      ["Headers", one.headers.length ? `${one.headers.join(", ")} (values are not shown)` : null],
      ["Body", one.body === "envelope" ? "envelope: JSON with the payload in it" : "the payload"],
      ["Timeout", span(one.timeout * 1_000)],
      ["Maximum tries", one.retry && (one.retry.max_attempts ? count(one.retry.max_attempts) : "no limit")],
      ["Delay before each retry", one.retry?.backoff.map((s) => span(s * 1_000)).join(", ")],
      ["Rate", one.rate ? `at most ${one.rate} a second` : "no limit"],
      ["Paused since", one.state === "paused" ? moment(one.left_at) : null],
    ],
    more: (one) => [h("h2", {}, "Last answers"), one.last_answers.length ? answers(one.last_answers) : h("p", { class: "empty" }, "Nothing posted since the server started.")],
  });
};
