// The server's own figures of the last hour or day, as pages draw them (`GET /v1/history`).
//
// A point holds what was counted in its `seconds` and what stood at its end. What a key may not see is not in it:
// its series is empty then. The server keeps them in memory, so they begin at its start (`since`).

import { denied, part } from "./api.js";
import { HOUR, MINUTE, server } from "./format.js";

const KEPT_MS = 10_000, KEPT = 8;
export const ENDPOINT = "$endpoint/";
const read = new Map();

/** { since, from, to, points }, times in ms; null if the key may not read it. The same question within 10 s is
 *  asked once. `from`: ms, rounded down to whole steps, so that points stay where they are. */
export function history(api, { from = server.now() - HOUR, step = MINUTE, group } = {}) {
  const query = { from: Math.floor(from / step) * step, step: step / 1_000, group };
  const key = JSON.stringify([api.key, query]), known = read.get(key);
  if (known && performance.now() - known.at < KEPT_MS) return known.answer;
  const answer = ask(api, query);
  read.delete(key);
  read.set(key, { at: performance.now(), answer });
  if (read.size > KEPT) read.delete(read.keys().next().value);
  answer.catch(() => read.delete(key));
  return answer;
}

async function ask(api, query) {
  const found = await api.get("/v1/history", query).catch(denied);
  return found && {
    since: found.since && Date.parse(found.since), from: query.from, to: server.now(),
    points: found.points.map((one) => ({ ...one, at: Date.parse(one.at) })),
  };
}

/** [[ms, value], ...] of what is known; null is a gap. `of`: the name of a figure, or point -> value. */
export function series(points, of) {
  const value = typeof of === "function" ? of : (one) => one[of];
  return points.map((one) => [one.at, value(one)]).filter(([, one]) => one !== undefined);
}

/** Messages a second: what these counters have counted together. */
export const rateOf = (...names) => (one) => one[names[0]] === undefined ? undefined : names.reduce((sum, name) => sum + one[name], 0) / one.seconds;

/** A rate (a second) in words. */
export function rate(value) {
  for (const [factor, unit] of [[1, "s"], [60, "min"]]) {
    if (value === 0 || value * factor >= 0.1) return `${short(value * factor)}/${unit}`;
  }
  return `${short(value * 3_600)}/h`;
}

const short = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });

const PLACES = { group: "#/places/group/", session: "#/places/session/", endpoint: "#/endpoints/" };

/** The page of a place. */
export const addressOf = ({ kind, name, filter }) => `${PLACES[kind]}${part(name)}${filter ? `?${new URLSearchParams({ filter })}` : ""}`;

/** The place of a group as the server names it: { kind, name, filter }. An endpoint is one that nobody can subscribe to;
 *  all posts to full URLs of an origin are found as a session is. */
export function placeOf(group, filter = "") {
  if (!group.startsWith(ENDPOINT)) return { kind: "group", name: group, filter };
  const name = group.slice(ENDPOINT.length);
  return /:\/\/|\*$/.test(name) ? { kind: "session", name: group } : { kind: "endpoint", name };
}

/** The places of a point that are behind: [place, figures]. */
export const placesOf = ({ groups = [], sessions = [] }) => [
  ...groups.map((one) => [placeOf(one.group, one.filter), one]), ...sessions.map((one) => [{ kind: "session", name: one.session }, one])];

/** The lag of a place in messages, [[ms, lag], ...]. Only the 20 furthest behind are in a point: others count as 0. */
export function lagSeries(points, { kind, name, filter = "" }) {
  const group = kind === "endpoint" ? ENDPOINT + name : name;
  const row = kind === "session" && !name.startsWith(ENDPOINT) ? (one) => one.sessions.find((each) => each.session === name) : (one) => one.groups.find((each) => each.group === group && each.filter === filter);
  return series(points, (one) => one.groups && (row(one)?.lag_messages ?? 0));
}
