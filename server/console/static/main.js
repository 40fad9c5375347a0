// The frame: which page is shown, what stands above all pages, and the key.
//
// A page is a module with `open(root, context)`, which draws itself into `root` and gives what closes it, or
// nothing. Its address is the fragment: `#/messages/ID?state=all`. The context is { api, live, path, query, go,
// every }: the parts of the path behind the page's name, what follows the `?`, `go(address)`, and
// `every(ms, action)`, which ends with the page, waits while the tab is hidden or text is selected, and never overlaps.

import { Api } from "./api.js";
import { dialog, reasons } from "./ask.js";
import { button, field, fill, h } from "./dom.js";
import { count, instant, span, zone } from "./format.js";
import { Live } from "./live.js";

const PAGES = [
  ["timeline", "Timeline"],
  ["messages", "Messages"],
  ["schedules", "Schedules"],
  ["sessions", "Sessions"],
  ["groups", "Groups"],
  ["endpoints", "Endpoints"],
  ["retries", "Retries"],
  ["dead", "Dead letters"],
  ["slices", "Slices"],
  ["jobs", "Jobs"],
  ["node", "Node"],
];

const FIRST_MS = 1_000;

const content = document.getElementById("content");
const api = new Api(askKey);
const live = new Live(api);
let close = () => {};
let shown = 0;

async function show() {
  const [address, tail = ""] = location.hash.replace(/^#/, "").split("?", 2);
  const [name = "", ...path] = address.replace(/^\//, "").split("/").map(decoded);
  const page = PAGES.find(([one]) => one === name);
  if (!page) {
    location.replace("#/timeline");
    return;
  }
  const turn = ++shown;
  api.isRefused = false;
  close();
  const ends = [];
  close = () => { for (const end of ends.splice(0)) end(); };
  mark(page);
  const root = h("div", {}, h("p", { class: "faint" }, "…"));
  fill(content, root);
  const context = { api, live, path, query: Object.fromEntries(new URLSearchParams(tail)), go, every: (ms, action) => ends.push(every(ms, action)) };
  try {
    const module = await import(`./${name}.js`);
    if (turn !== shown) return;
    const end = await module.open(root, context);
    if (end) turn === shown ? ends.push(end) : end();
  } catch (error) {
    fill(root, h("h1", {}, page[1]), h("p", { class: "bad", role: "alert" }, reasons(error)), button("Try again", show));
  }
  if (turn !== shown) return;
  root.dataset.ready = name;
}

/** A part of the address; one whose escapes are broken as it stands. */
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function go(address) {
  const next = `#${address}`;
  if (location.hash === next) show();
  else location.hash = next;
}

/** Again and again until it is ended; what an action throws is for the page to say. */
function every(ms, action) {
  let timer = null;
  let over = false;
  const turn = async () => {
    if (!document.hidden && document.getSelection().isCollapsed) await action().catch(() => {});
    if (!over) timer = setTimeout(turn, ms);
  };
  timer = setTimeout(turn, ms);
  return () => { over = true; clearTimeout(timer); };
}

function mark([name, title]) {
  document.title = `${title} · fasti`;
  for (const link of document.querySelectorAll("#pages a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function askKey(why) {
  return dialog("This server asks for a key", [
    h("p", { class: "faint" }, why),
    field("Key", "key", { type: "password", required: true }),
  ], { act: "Use it", answer: (form) => form.elements.key.value.trim() || null });
}

function tools() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const theme = button("", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("fasti-theme", root.dataset.theme);
    name();
  });
  const times = button("", () => { zone.isUtc = !zone.isUtc; name(); show(); });
  const key = button("Key", async () => { if (await api.askOnce("It is kept for this tab.")) show(); });
  function name() {
    theme.textContent = dark() ? "Light" : "Dark";
    times.textContent = zone.isUtc ? "Local time" : "UTC";
  }
  root.dataset.theme = localStorage.getItem("fasti-theme") ?? (dark() ? "dark" : "light");
  name();
  return [times, theme, key];
}

function standing(figures) {
  const line = document.getElementById("live");
  line.classList.toggle("off", !figures);
  if (!figures) { line.textContent = "no live figures at the moment"; return; }
  const parts = [instant(figures.time.replace(/\.\d+/, "")), zone.name];
  const say = (value, text) => { if (value !== undefined && value !== null) parts.push(`${count(value)} ${text}`); };
  say(figures.pending, "pending");
  say(figures.dispatched, "dispatched");
  say(figures.sessions, figures.sessions === 1 ? "session" : "sessions");
  if (figures.behind_ms > 1_000) parts.push(`dispatch is ${span(figures.behind_ms)} behind`);
  if (figures.held) say(figures.held, "held");
  if (figures.dead_letters) say(figures.dead_letters, "dead");
  if (figures.store_writable === false) parts.push("the store takes no writes");
  line.textContent = parts.join(" · ");
}

fill(document.getElementById("pages"), PAGES.map(([name, title]) => h("a", { href: `#/${name}` }, title)));
fill(document.getElementById("tools"), tools());
live.on(standing);
// Pages are drawn by the server's time, which is known from its first event; whoever has to wait for that has not.
await Promise.race([live.first, new Promise((done) => setTimeout(done, FIRST_MS))]);
addEventListener("hashchange", show);
show();
