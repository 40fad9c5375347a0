// One place: what it has not finished, its lag in the last hour, its retries and dead letters, and what can be done with
// it. Each act says first what it concerns. What can be taken back offers that, all else asks.

import { denied } from "./api.js";
import { attempt, dialog, notice, reasons } from "./ask.js";
import { button, entries, facts, field, fill, h, moment, tag } from "./dom.js";
import { away, count, instant, server, toApi, DAY, HOUR, MINUTE } from "./format.js";
import { ENDPOINT, history, lagSeries } from "./history.js";
import { dead } from "./dead.js";
import { keptList } from "./kept.js";
import { lines } from "./lines.js";
import { orderedKeys } from "./ordered.js";
import { behind, deadOf, failed, kept, lagOf, stateOf } from "./place.js";
import { retries } from "./retries.js";
import { deadLink } from "./wrong.js";

const REFRESH_MS = 3_000;
const UNITS = { s: 1_000, m: MINUTE, h: HOUR, d: DAY };
const DEAD = "dead";
/** Filters whose messages are counted before a replay: each takes a call. */
const COUNTED = 10;

/** `read()`: the place as it stands, see `placed`. `settings(one)`: facts of its kind alone; `more(one)`: what stands
 *  between them and the retries; `acts(load)`: buttons of its kind alone. */
export async function openPlace(root, { api, every, go }, { read, settings, more = () => null, acts = () => null }) {
  let place = await read();
  const { kind, name, path, query, called } = place;
  const head = h("div"), stands = h("section"), terms = h("section"), chart = h("section"), rest = h("div"), isOfUrls = kind === "session" && name.startsWith(ENDPOINT);
  const kinds = [retries, dead].map((one) => keptList(api, one, { group: called }, { isOfOne: true, changed: () => attempt(load, null) }));
  const keys = orderedKeys(api, () => place, () => attempt(loadAll, null));
  fill(root, head, h("div", { class: "columns" }, stands, terms, chart), rest, keys.node, h("h2", {}, "Retries"), kinds[0].node, h("h2", {}, "Dead letters"), kinds[1].node);

  async function load() {
    place = await read();
    draw();
  }

  function draw() {
    const { one, filter } = place, undone = one.undone ?? {}, [state, how] = stateOf(place);
    fill(head, h("h1", {}, isOfUrls ? name.slice(ENDPOINT.length) : name, filter ? [" ", h("code", {}, filter)] : null, " ", isOfUrls ? tag("posts to full URLs") : [tag(kind), " ", tag(state, how)]),
      one.reason && one.state === "paused" ? h("p", { class: "bad" }, `The server has paused it: ${one.reason}. Resume it when its receiver works again.`) : null,
      h("div", { class: "row" },
        kind === "session" ? null : one.state === "paused" ? button("Resume", () => turn("resume"), "act") : button("Pause", () => turn("pause")),
        acts(load), button("Skip…", skip), button("Replay…", replay), isOfUrls ? null : button("Delete…", drop, "danger")));
    fill(stands, h("h2", {}, "Not finished"), facts([
      ["Lag", `${lagOf(one)} ${one.lag_messages === 1 ? "message" : "messages"}${one.lag_seconds ? `, the oldest due ${behind(one)} ago` : ""}`],
      ["In flight", count(one.in_flight)],
      ["Retries", `${count(undone.retries)}${undone.next_retry_at ? `, the next try ${Date.parse(undone.next_retry_at) > server.now() ? away(undone.next_retry_at, server.now()) : "is due"}` : ""}`],
      ["Dead letters", one.dead_letters ? deadLink(place) : deadOf(one)],
      ["Held ordering keys", one.keys_held ? h("span", { class: "warn" }, count(one.keys_held)) : null],
      ["Failed tries", failed(one)],
      ["Oldest unfinished", undone.oldest_at && [moment(undone.oldest_at), ` (${away(undone.oldest_at, server.now())})`]],
      ["Read up to", moment(one.position?.at)],
      ["Delivered", one.delivered === undefined ? null : `${count(Math.max(0, one.delivered - one.failed - one.in_flight))} in ${one.delivered === 1 ? "1 try" : `${count(one.delivered)} tries`} since the server started`],
    ]));
    fill(terms, h("h2", {}, "Settings"), facts([...settings(one), ["Order", one.order ? `one message of an ordering key at a time${one.on_dead === "hold" ? "; a dead letter holds its key" : ""}` : null], ["Alerts to", one.alerts], ["Kept", one.expiry === undefined ? null : kept(one.expiry)]]));
    fill(rest, more(one));
  }

  async function drawLag() {
    const past = await history(api).catch(denied);
    fill(chart, past && h("h2", {}, "Lag"), past && lines({ title: "Last hour", series: [["messages", lagSeries(past.points, place)]], say: count, from: past.from, to: past.to }));
  }

  const lists = [keys, ...kinds];
  const loadAll = () => load().then(() => Promise.all(lists.map((one) => one.load())));

  const turns = { pause: ["resume", `${name} is paused: due messages wait`], resume: ["pause", `${name} is resumed`] };
  async function turn(verb) {
    const [back, done] = turns[verb];
    await attempt(() => api.post(`${path}:${verb}`, undefined, query), done, () => turn(back));
    await attempt(load, null);
  }

  /** What an act concerns, as it stands now. */
  async function concerned() {
    await load();
    const { one } = place;
    return facts([["Lag", `${lagOf(one)} messages`], ["In flight", count(one.in_flight)], ["Retries", count(one.undone?.retries)], ["Dead letters", deadOf(one)]]);
  }

  async function skip() {
    const figures = await concerned().catch(told);
    if (!figures) return;
    const [result, undone] = (await dialog("Skip unread messages", [
      h("p", {}, "Messages that are due and unread are skipped. Messages in flight, retries and dead letters stay as they are."), figures,
      field("Skip up to", "to", { value: "now", required: true, placeholder: "now, 2026-12-24 09:00, or 1h for an hour ago" }),
      field("Skipped messages", "undone", { options: [[DEAD, "become dead letters, which can be requeued"], ["drop", "are dropped"]] }),
    ], { act: "Skip", kind: "danger", answer: async (form) => { const said = entries(form); return [await api.post(`${path}:skip`, { ...said, to: toApi(said.to) }, query), said.undone]; } })) ?? [];
    if (!result) return;
    notice(`It continues from ${instant(result.to)}. Unread before: ${count(result.undone.lag)}`, "good", async () => {
      await attempt(() => api.post(`${path}:replay`, { from: result.from }, query), `Its read position is restored${undone === DEAD ? ". The dead letters of the skip stay" : ""}`);
      await attempt(loadAll, null);
    });
    await attempt(loadAll, null);
  }

  /** First from when on, then how many those are, then the act. */
  async function replay() {
    const from = await dialog("Replay", [
      h("p", {}, "All messages since a time are delivered again, with the same ids."),
      field("Since (a time, or a duration back)", "from", { required: true, placeholder: "1h, or 2026-12-24 09:00" }),
    ], { act: "Count", answer: (form) => toApi(form.elements.from.value.trim()) });
    if (!from) return;
    const [n, figures] = await Promise.all([counted(from).catch(() => null), concerned()]).catch(told) ?? [];
    if (!figures) return;
    const sure = await dialog("Replay", [
      h("p", {}, n === null ? `What was delivered since ${from} would be delivered again. Nothing has changed yet.` : [h("strong", {}, count(n)), ` ${n === 1 ? "message was" : "messages were"} dispatched since then and would be delivered again. Nothing has changed yet.`]), figures,
    ], { act: "Replay", kind: "danger", answer: async () => { await api.post(`${path}:replay`, { from }, query); return true; } });
    if (sure) { notice("The replay has begun"); await attempt(loadAll, null); }
  }

  /** How many dispatched messages its filters have asked for since then; null: not known. */
  async function counted(from) {
    const ago = /^(?:PT?)?(\d+)([smhd])$/i.exec(from);
    const since = ago ? new Date(server.now() - Number(ago[1]) * UNITS[ago[2].toLowerCase()]).toISOString() : from;
    const filters = kind === "group" ? [place.filter] : (place.one.subscriptions ?? []).map((each) => each.filter);
    if (!filters.length || filters.length > COUNTED) return null;
    const pages = await Promise.all(filters.map((topic) => api.get("/v1/messages", { topic, state: "dispatched", due_from: since, count: true, limit: 1 })));
    return pages.reduce((sum, page) => sum + page.count, 0);
  }

  async function drop() {
    const figures = await concerned().catch(told);
    if (!figures) return;
    const isSession = kind === "session";
    const gone = await dialog(`Delete ${kind} ${name}?`, [
      h("p", {}, isSession ? "Its connection is closed, and its read position is forgotten. Messages in flight and retries are dropped, dead letters stay."
        : kind === "group" ? "Its read position is forgotten. Members get nothing more from it. Dead letters stay." : "Messages for it go nowhere from now on. Dead letters stay."), figures,
      isSession ? null : field("Unfinished messages", "undone", { options: [[DEAD, "become dead letters"], ["drop", "are dropped"]] }),
    ], { act: "Delete", kind: "danger", answer: async (form) => { await api.remove(path, { ...query, ...entries(form) }); return true; } });
    if (gone) { notice(`${name} is deleted`); go(kind === "endpoint" ? "/endpoints" : `/places?kind=${kind}`); }
  }

  /** It has ended meanwhile. */
  function gone(error) {
    if (error.status !== 404) throw error;
    fill(head, h("h1", {}, name), h("p", { class: "bad", role: "alert" }, "This place no longer exists: it was deleted, or it has expired."));
  }

  const told = (error) => { notice(reasons(error), "bad"); return null; };

  draw();
  await Promise.all([drawLag(), ...lists.map((one) => one.load().catch((error) => fill(one.node, h("p", { class: "bad" }, reasons(error)))))]);
  every(REFRESH_MS, () => load().catch(gone));
  every(MINUTE / 2, drawLag);
  every(REFRESH_MS, keys.load);
}
