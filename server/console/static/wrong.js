// What is wrong now, the worst first: each a sentence with a link to where it is mended.
//
// It is told what is known; what is null nobody may see here, and is left out. The bounds are those of the
// project's alerts (docs/alerts.yml), without their times of waiting.

import { h, tag } from "./dom.js";
import { away, bytes, clock, count, percent, server, span, DAY, HOUR } from "./format.js";
import { addressOf, placeOf } from "./history.js";
import { behind, deadOf, lagOf, stateOf } from "./place.js";

const BEHIND_MS = 1_000, LAG_S = HOUR / 1_000, AWAY_MS = HOUR, FREE_BYTES = 1 << 30, NEAR = 0.9;
const EACH = 8;
/** What the server says of reasons beyond the most frequent ones. */
export const OTHERS = "other reasons";

const link = (place) => h("a", { href: addressOf(place) }, place.name);
const countOf = (n) => `${count(n)} ${n === 1 ? "message" : "messages"}`;
const messages = (one) => `${lagOf(one)} ${one.lag_messages === 1 ? "message" : "messages"}`;
const gap = (one) => server.now() - Date.parse(one.left_at);
const since = (one) => gap(one) < DAY / 2 ? `since ${clock(Date.parse(one.left_at))}` : `for ${span(gap(one))}`;

/** What waits for its next try at a place, with the way there. */
function retriesOf({ called, one: { undone } }) {
  if (!undone?.retries) return null;
  return [" ", h("a", { href: `#/retries?${new URLSearchParams({ group: called })}` }, `${count(undone.retries)} ${undone.retries === 1 ? "retry waits" : "retries wait"}`),
    Date.parse(undone.next_retry_at) > server.now() ? `, the next ${away(undone.next_retry_at, server.now())}.` : "."];
}

const waiting = ({ one }) => one.lag_messages ? ` ${messages(one)} ${one.lag_messages === 1 ? "waits" : "wait"}${one.lag_seconds ? `, the oldest for ${behind(one)}` : ""}.` : null;

/** Counts by reason, the most frequent first, each with the way to its messages. */
export const byReason = (page, reasons) => Object.entries(reasons).sort((a, b) => b[1] - a[1]).map(([reason, n], index) =>
  [index ? ", " : "", `${count(n)} × `, reason === OTHERS ? reason : h("a", { href: `#/${page}?${new URLSearchParams({ reason })}` }, reason)]);

/** [[kind, word, ...sentence], ...] by how bad they are. */
export function troubles({ figures, metrics, cluster, endpoints, groups, sessions, points }) {
  const found = [
    ...serverOf(figures, metrics, cluster),
    ...some(endpoints, endpoint, "endpoints"), ...some(groups, group, "places"),
    ...some(endpoints, held, "endpoints"), ...some(groups, held, "places"),
    ...gone(sessions), ...floor(metrics), ...archive(metrics), ...nobody(points), ...deaths(points), ...retries(points), ...bounds(metrics),
  ];
  return [...found.filter(([kind]) => kind === "bad"), ...found.filter(([kind]) => kind !== "bad")];
}

/** Of many that are wrong in the same way the first ones, and how many more there are. */
function some(rows, of, page) {
  const found = (rows ?? []).map(of).filter(Boolean);
  const left = found.length - EACH;
  return left > 0 ? [...found.slice(0, EACH), ["warn", "more", h("a", { href: `#/${page}` }, `${count(left)} more`), ` of the same kind.`]] : found;
}

function* serverOf(figures, metrics, cluster) {
  const node = h("a", { href: "#/node" }, "Node");
  if (figures?.store_writable === false) yield ["bad", "read only", "The store cannot be written: the server accepts no messages. Its log says why, mostly a full or failing disk. It continues by itself when the disk is writable. ", node];
  if (figures?.behind_ms > BEHIND_MS) yield ["bad", "behind", `Dispatch is ${span(figures.behind_ms)} behind what is due. `, node.cloneNode(true)];
  if (figures?.held) yield ["warn", "held", `${countOf(figures.held)} ${figures.held === 1 ? "waits" : "wait"} because the server's clock was set back.`];
  if (cluster?.why) yield ["bad", "cluster", `${cluster.why}. `, node.cloneNode(true)];
  if (metrics?.value("fasti_unreadable_stretches") || metrics?.value("fasti_unreadable_rows")) yield ["bad", "damaged", "A part of the data cannot be read: see ", h("a", { href: "#/slices" }, "Slices"), "."];
}

function endpoint(place) {
  const { one } = place, [, kind] = stateOf(place), rest = [waiting(place), retriesOf(place), one.dead_letters ? [" ", deadLink(place), "."] : null];
  if (one.state === "paused") {
    return one.reason || one.lag_messages || one.undone?.retries ? [kind, "paused", link(place), ` is paused${one.left_at ? ` ${since(one)}` : ""}${one.reason ? `: ${one.reason}` : " by hand"}.`, rest] : null;
  }
  const { share, of, last_reason: reason } = one.failing;
  if (!share) return null;
  const isOver = one.last_answers[0].reason === null;
  if (isOver && share < 0.5 && !one.undone?.retries) return null;
  return [kind, "failing", link(place), `: ${of === 1 ? "the last post" : `${percent(share)} of the last ${count(of)} posts`} failed: ${reason}${isOver ? "; the latest one succeeded" : ""}.`, rest];
}

function group(place) {
  const { one } = place, [, kind] = stateOf(place);
  if (!one.lag_messages && !one.undone.retries) return null;
  const named = [link(place), ` (${one.filter})`], rest = [waiting(place), retriesOf(place)];
  if (one.state === "paused") return [kind, "paused", "Group ", named, " is paused.", rest];
  if (kind === "bad") return [kind, "no worker", "Group ", named, ` has had no worker ${since(one)}.`, rest];
  return one.lag_seconds > LAG_S ? ["warn", "behind", "Group ", named, " does not keep up.", rest] : null;
}

function* gone(sessions) {
  const found = (sessions ?? []).filter(({ one }) => one.left_at && one.lag_messages && gap(one) > AWAY_MS).sort((a, b) => gap(b.one) - gap(a.one));
  if (!found.length) return;
  yield ["warn", "offline", found.length === 1 ? "A client is offline with messages waiting: " : `${count(found.length)} clients are offline with messages waiting: `,
    found.slice(0, 3).map((place, index) => [index ? "; " : "", link(place), ` (${messages(place.one)}, ${since(place.one)})`]), found.length > 3 ? "; …" : "."];
}

/** Places where somebody or a dead letter holds ordering keys: their messages wait until they are released. */
function held(place) {
  const { one } = place, n = one.keys_held;
  if (!n) return null;
  return ["warn", "held", link(place), ` holds ${n === 1 ? "an ordering key" : `${count(n)} ordering keys`}: nothing more of ${n === 1 ? "it" : "them"} is delivered until ${n === 1 ? "it is" : "they are"} released.`,
    one.dead_letters ? [" ", deadLink(place), "."] : null];
}

/** The way to what a place has given up. */
export const deadLink = ({ called, one }) => h("a", { href: `#/dead?${new URLSearchParams({ group: called })}` }, `${deadOf(one)} dead ${one.dead_letters === 1 ? "letter" : "letters"}`);

/** Who is so far behind that slices stay for it alone. */
function* floor(metrics) {
  for (const [{ group: name }, seconds] of metrics?.all("fasti_floor_kept_seconds") ?? []) {
    const place = placeOf(name);
    yield ["warn", "old slices", link(place), ` is behind: old messages stay on the disk ${span(seconds * 1_000)} longer than their retention.`];
  }
}

/** The archive is behind: nothing is dropped that it has not got. */
function* archive(metrics) {
  const lag = metrics?.value("fasti_archive_lag_seconds"), jobs = h("a", { href: "#/jobs" }, "Jobs");
  if (metrics?.value("fasti_archive_refusing")) yield ["bad", "disk", "The server accepts no messages: the disk is nearly full, and old messages wait for the archive. See ", jobs, "."];
  else if (lag > LAG_S) yield ["warn", "archive", `The archive is ${span(lag * 1_000)} behind: see `, jobs, "."];
}

/** Dead letters of these points by reason. */
export function deathsByReason(points) {
  const sum = Object.create(null);
  for (const one of points ?? []) for (const [reason, n] of Object.entries(one.died_by_reason ?? {})) sum[reason] = (sum[reason] ?? 0) + n;
  return sum;
}

/** Counted in these points. */
const sumOf = (points, name) => (points ?? []).reduce((sum, one) => sum + (one[name] ?? 0), 0);

function* nobody(points) {
  const unclaimed = sumOf(points, "unclaimed"), dropped = sumOf(points, "dropped");
  if (unclaimed) yield ["warn", "unclaimed", `${countOf(unclaimed)} of the last hour had no receiver: no group, endpoint or session asked for ${unclaimed === 1 ? "it" : "them"}. `, h("a", { href: "#/messages?state=dispatched" }, "Dispatched messages"), "."];
  if (dropped) yield ["warn", "dropped", `${countOf(dropped)} ${dropped === 1 ? "was" : "were"} dropped in the last hour before anybody had finished ${dropped === 1 ? "it" : "them"}: with a deleted place, or for lack of room for dead letters. The server's log names the place.`];
}

const total = (reasons) => Object.values(reasons).reduce((sum, n) => sum + n, 0);

function* deaths(points) {
  const reasons = deathsByReason(points), n = total(reasons);
  if (n) yield ["warn", "dead", `${countOf(n)} became ${n === 1 ? "a dead letter" : "dead letters"} in the last hour: `, byReason("dead", reasons), "."];
}

function* retries(points) {
  const reasons = points?.at(-1)?.retries_by_reason ?? {}, n = total(reasons);
  if (n) yield ["warn", "retries", `${countOf(n)} ${n === 1 ? "waits" : "wait"} for another try: `, byReason("retries", reasons), "."];
}

function* bounds(metrics) {
  if (!metrics) return;
  const free = metrics.value("fasti_disk_free_bytes");
  if (free < FREE_BYTES) yield ["bad", "disk", `The disk of the data has only ${bytes(free)} free.`];
  for (const { title, bound, used, isBytes, isCache } of metrics.limits()) {
    if (!bound || isCache || used <= NEAR * bound) continue;
    const say = isBytes ? bytes : count;
    yield ["warn", "limit", `${title}: ${percent(used / bound)} in use, ${say(Math.round(used))} of ${say(bound)}. `, h("a", { href: "#/node" }, "Node")];
  }
}

/** The list, or the calm. `unseen`: what this key may not see, in words; `isKnown`: it sees enough to say that all is well. */
export function drawn(found, unseen, isKnown) {
  const rest = unseen.length ? h("p", { class: "faint" }, `This key may not see ${unseen.join(" and ")}.`) : null;
  if (!found.length) return [isKnown && h("p", { class: "calm" }, tag("good", "good"), " Nothing is wrong: nobody is behind, nothing fails."), rest];
  return [h("ul", { class: "troubles" }, found.map(([kind, word, ...text]) => h("li", {}, tag(word, kind), h("span", {}, text)))), rest];
}
