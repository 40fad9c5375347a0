// The frame: which page is shown, what stands above all pages, and the key.
//
// A page is a module with `open(root, context)`, which draws itself into `root` and gives what closes it, or
// nothing. Its address is the fragment: `#/messages/ID?state=all`. The context is { api, live, path, query, go,
// every }: the parts of the path behind the page's name, what follows the `?`, `go(address)`, and
// `every(ms, action, rows)`, which ends with the page, waits while the tab is hidden or text is selected, and never
// overlaps. `rows()`: how many the page draws; beyond MANY it is drawn less often.

import { Api } from "./api.js";
import { dialog, reasons } from "./ask.js";
import { button, entries, field, fill, h } from "./dom.js";
import { listen } from "./keys.js";
import { clock, count, instant, server, span, zone } from "./format.js";
import { Live } from "./live.js";

/** Name in the address, title, and the key that follows `g`. */
const PAGES = [
  ["overview", "Overview", "o"],
  ["timeline", "Timeline", "t"],
  ["messages", "Messages", "m"],
  ["tail", "Live", "l"],
  ["schedules", "Schedules", "s"],
  ["places", "Places", "p"],
  ["endpoints", "Endpoints", "e"],
  ["retries", "Retries", "r"],
  ["dead", "Dead letters", "d"],
  ["slices", "Slices", "i"],
  ["jobs", "Jobs", "j"],
  ["node", "Node", "n"],
];

/** Addresses of former pages, which are written down somewhere. */
const MOVED = { groups: "group", sessions: "session" };

const FIRST_MS = 1_000;
const MANY = 200, SLOWER = 6;

const content = document.getElementById("content");
const api = new Api(askKey);
const live = new Live(api);
let close = () => {};
let shown = 0;

async function show() {
  const [address, tail = ""] = location.hash.replace(/^#/, "").split("?", 2);
  const [name = "", ...path] = address.replace(/^\//, "").split("/").map(decoded);
  if (Object.hasOwn(MOVED, name)) {
    location.replace(path[0] ? `#/places/${MOVED[name]}${location.hash.slice(name.length + 2)}` : `#/places?kind=${MOVED[name]}`);
    return;
  }
  const page = PAGES.find(([one]) => one === name);
  if (!page) {
    location.replace(`#/${PAGES[0][0]}`);
    return;
  }
  const turn = ++shown;
  api.isRefused = false;
  close();
  const ends = [];
  close = () => { for (const end of ends.splice(0)) end(); };
  mark(page);
  unfold(false);
  const root = h("div", {}, h("p", { class: "faint" }, "…"));
  fill(content, root);
  const failing = new Map(), late = h("p", { class: "warn", role: "status" });
  const stale = (action, error) => {
    error ? failing.set(action, error) : failing.delete(action);
    if (failing.size && !late.isConnected) { late.dataset.since = clock(server.now()); root.before(late); }
    failing.size ? fill(late, `Not up to date since ${late.dataset.since}: ${reasons([...failing.values()].at(-1))}`) : late.remove();
  };
  const context = {
    api, live, path, query: Object.fromEntries(new URLSearchParams(tail)),
    // One who has gone on to another page stays there.
    go: (to) => { if (turn === shown || location.hash === `#${to}`) go(to); },
    every: (ms, action, rows = () => 0) => { if (turn === shown) ends.push(every(ms, action, rows, (error) => stale(action, error))); },
  };
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

/** Again and again until it is ended. `told(error)`: what an action throws, null if it went well. */
function every(ms, action, rows, told) {
  let timer = null;
  let over = false;
  const wait = () => { timer = setTimeout(turn, rows() > MANY ? SLOWER * ms : ms); };
  const turn = async () => {
    if (!document.hidden && document.getSelection().isCollapsed) {
      const error = await action().then(() => null, (problem) => problem);
      if (!over) told(error);
    }
    if (!over) wait();
  };
  wait();
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
  return dialog("This server requires a key", [
    h("p", { class: "faint" }, why),
    field("Key", "key", { type: "password", required: true }),
  ], { act: "Use it", stays: true, answer: (form) => form.elements.key.value.trim() || null });
}

/** Where the header is folded, a button shows the pages. */
function unfold(isOpen) {
  document.getElementById("folded").classList.toggle("open", isOpen);
  menu.setAttribute("aria-expanded", isOpen);
}

function tools() {
  const root = document.documentElement;
  const dress = (theme) => { theme ? (root.dataset.theme = theme) : delete root.dataset.theme; };
  const chosen = localStorage.getItem("fasti-theme") ?? "";
  dress(chosen);
  const choice = (label, options, value, choose) => h("select", { "aria-label": label, title: label, onchange: (event) => choose(event.target.value) },
    options.map(([name, text]) => h("option", { value: name, selected: name === value }, text)));
  return [
    choice("Times are shown in", [["local", zone.local], ["utc", "UTC"]], zone.isUtc ? "utc" : "local", (value) => { zone.isUtc = value === "utc"; show(); }),
    choice("Colours", [["", "System colours"], ["light", "Light"], ["dark", "Dark"]], chosen, (theme) => { localStorage.setItem("fasti-theme", theme); dress(theme); }),
    button("API key", async () => { if (await api.askOnce("It is kept for this tab only.")) show(); }),
    button("Keyboard", () => keys.help(), null, { class: "wide-only", title: "Keyboard shortcuts (?)" }),
  ];
}

function standing(figures) {
  const line = document.getElementById("live");
  line.classList.toggle("off", !figures);
  document.getElementById("draining").hidden = !figures?.draining;
  if (!figures) { line.textContent = "No live figures at the moment"; return; }
  const parts = [];
  const say = (value, text) => { if (value !== undefined && value !== null) parts.push(`${count(value)} ${text}`); };
  say(figures.pending, "pending");
  if (figures.behind_ms > 1_000) parts.push(`dispatch is ${span(figures.behind_ms)} behind`);
  if (figures.held) say(figures.held, "held because the clock was set back");
  if (figures.dead_letters) say(figures.dead_letters, figures.dead_letters === 1 ? "dead letter" : "dead letters");
  if (figures.store_writable === false) parts.push("the store cannot be written");
  parts.push(`${instant(figures.time.replace(/\.\d+/, ""))} ${zone.name}`);
  line.textContent = parts.join(" · ");
}

fill(document.getElementById("pages"), PAGES.map(([name, title]) => h("a", { href: `#/${name}` }, title)));
const menu = document.getElementById("menu"), find = document.getElementById("find");
menu.addEventListener("click", () => unfold(menu.getAttribute("aria-expanded") !== "true"));
find.addEventListener("submit", (event) => {
  event.preventDefault();
  const { q } = entries(find);
  if (q) go(`/messages?${new URLSearchParams({ q })}`);
});
const keys = listen(PAGES, go, find.elements.q);
fill(document.getElementById("tools"), tools());
live.on(standing);
// Pages are drawn by the server's time, which its first event tells. A user who has to wait for that has no time yet.
await Promise.race([live.first, new Promise((done) => setTimeout(done, FIRST_MS))]);
addEventListener("hashchange", show);
show();
