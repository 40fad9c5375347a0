// A place, whoever receives messages: a session, a group or an endpoint, and what pages say of each alike.

import { part } from "./api.js";
import { h } from "./dom.js";
import { count, percent, server, span } from "./format.js";
import { addressOf, ENDPOINT, placeOf } from "./history.js";

export const KINDS = ["group", "endpoint", "session"];
/** A worker that leases is there as long as its call: nobody is missed before. */
const SOON_MS = 60_000;
/** How far dead letters are counted, in a list and for one place. */
const COUNTED_TO = [1_000, 10_000];
const SHARE = "$share/";

/** A place as the API shows it, with its addresses: the page's, the API's, and the name that retries and dead letters
 *  are found by. */
export function placed(kind, one) {
  const { name } = one, filter = kind === "group" ? one.filter : "";
  const called = kind === "group" ? `${SHARE}${name}/${filter}` : kind === "endpoint" ? ENDPOINT + name : name;
  return { kind, name, filter, one, called, href: addressOf({ kind, name, filter }), path: `/v1/${kind}s/${part(name)}`, query: filter ? { filter } : {} };
}

/** The page of the place that keeps a retry or dead letter. All posts to full URLs are found as sessions are. */
export function keeperOf({ group, subscription }) {
  const isSession = subscription === null && !group.startsWith(ENDPOINT);
  const place = isSession ? { kind: "session", name: group } : placeOf(group, subscription?.slice(SHARE.length + group.length + 1));
  return h("a", { href: addressOf(place) }, group.replace(ENDPOINT, ""));
}

export const lagOf = (one) => one.lag_messages === undefined ? "–" : `${count(one.lag_messages)}${one.lag_messages_is_exact ? "" : " or more"}`;
export const behind = (one) => one.lag_seconds ? span(one.lag_seconds * 1_000).replaceAll(" ", "\u00a0") : null;
export const deadOf = ({ dead_letters: dead }) => COUNTED_TO.includes(dead) ? `${count(dead)} or more` : count(dead);

/** How many tries failed: of an endpoint's last posts, else since the server started. */
export function failed(one) {
  const [bad, of] = one.failing ? [Math.round(one.failing.share * one.failing.of), one.failing.of] : [one.failed, one.delivered];
  if (!of) return null;
  return bad ? h("span", { class: bad < of / 2 ? "warn" : "bad" }, `${count(bad)} of ${count(of)} (${percent(Math.min(1, bad / of))})`) : `none of ${count(of)}`;
}

/** How a place stands: [words, kind of a tag]; the worst kinds first in ORDER. */
export const ORDER = ["bad", "warn", null, "good"];
export function stateOf({ kind, one }) {
  const ms = one.left_at ? server.now() - Date.parse(one.left_at) : 0, since = ms >= SOON_MS ? ` for ${span(ms)}` : "";
  const undone = one.undone ? one.undone.lag + one.undone.retries : 0;
  if (one.state === "paused") return one.reason ? [`paused: ${one.reason}`, "bad"] : [`paused${since}`, "warn"];
  if (kind === "endpoint") {
    const { failing: { share, of }, last_answers: [last] } = one;
    if (!share) return of ? ["works", "good"] : ["nothing posted yet", null];
    return last.reason ? [`failing ${percent(share)}`, share < 0.5 ? "warn" : "bad"] : ["works again", "warn"];
  }
  if (kind === "session") return one.connected ? ["connected", "good"] : [`offline${since}`, undone ? "warn" : null];
  const here = one.members.filter((each) => each.connected).length;
  if (here || !since) return [here === 1 ? "1 member" : here ? `${count(here)} members` : one.left_at ? "no members" : "leases messages", here ? "good" : null];
  return [`no members${since}`, undone ? "bad" : null];
}

/** How long a place stays with nobody there. */
export const kept = (expiry) => expiry === "never" ? "until it is deleted" : expiry ? `for ${span(expiry * 1_000)} with nobody there` : "only while it is connected";
