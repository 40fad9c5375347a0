// Search: pages of the list of messages, from the first on or from the last back, and what fits of them.
//
// The server selects by topic, due time and state. Words, a header, a part of the payload and a schedule are looked for
// here, in all that the server gives; so the page bounds how much it reads.

import { textOf } from "./payload.js";

const SECOND = 1_000, PAGE = 1_000;
/** A span that takes more pages is read in shorter ones; one second that takes more than CUT_PAGES is cut. */
const SPAN_PAGES = 4, CUT_PAGES = 20;
/** The server refuses lower times in ms, except 0. */
const UNIX_MS_FROM = 100_000_000_000;

/** { rows, upTo } in the order of the timeline; `upTo`: ms, null where only the server knows. */
export async function* forward(api, { from, to, ...query }, signal) {
  let cursor = null;
  do {
    const page = await api.call("GET", "/v1/messages", { query: { ...query, due_from: from, due_to: to, cursor }, signal });
    cursor = page.next;
    // A cursor of 48 digits begins with the time of the row that was read last; a longer one does not tell.
    const upTo = cursor?.length === 48 ? parseInt(cursor.slice(0, 12), 16) : Date.parse(page.messages.at(-1)?.deliver_at);
    yield { rows: page.messages, upTo: upTo || null };
  } while (cursor);
}

/** The same, newest first. The server lists in one order only, so spans are read: each one before the last, longer while
 *  they hold little, and shorter if one holds much. */
export async function* backward(api, { from = 0, to, now, ...query }, signal) {
  let width = SECOND, end = Math.min(to ?? now, now);
  let last = to;  // without an end: what was dispatched since `now` too
  while (end > from) {
    const start = Math.max(from, end - width < UNIX_MS_FROM ? 0 : end - width), rows = [];
    let pages = 0, cursor = null;
    do {
      const page = await api.call("GET", "/v1/messages", { query: { ...query, due_from: start, due_to: last, limit: PAGE, cursor }, signal });
      for (const row of page.messages) rows.push(row);
      cursor = page.next;
      pages += 1;
    } while (cursor && pages < (width > SECOND ? SPAN_PAGES : CUT_PAGES));
    if (cursor && width > SECOND) {
      width = Math.max(SECOND, width / 8);
      continue;
    }
    yield { rows: rows.reverse(), upTo: start, isCut: Boolean(cursor) };
    if (pages === 1) width *= 4;
    end = last = start;
  }
}

/** Whether a topic filter may be meant, and is one. */
export const isFilter = (text) => text.split("/").every((level, index, all) => level === "+" || (level === "#" && index === all.length - 1) || !/[+#]/.test(level));

/** Tells whether a message has all of it; null: nothing is asked for. `words`: each somewhere in topic, payload, headers or
 *  schedule; a number is whole: 17 is not in 170. `header`: "name" or "name=part of the value"; `text`: of the payload. */
export function fitsOf({ words, header, text, schedule }) {
  const tests = [];
  for (const word of words) {
    const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const sought = new RegExp(`${/^\d/.test(word) ? "(?<!\\d)" : ""}${escaped}${/\d$/.test(word) ? "(?!\\d)" : ""}`, "iu");
    tests.push((one) => sought.test(`${one.topic}\n${textOf(one)}\n${JSON.stringify(one.headers ?? {})}\n${one.schedule ?? ""}\n${one.deliver_to ?? ""}`));
  }
  if (header) {
    const [name, ...value] = header.split("=");
    tests.push((one) => Object.hasOwn(one.headers ?? {}, name.trim()) && one.headers[name.trim()].includes(value.join("=").trim()));
  }
  if (text) tests.push((one) => textOf(one).toLowerCase().includes(text.toLowerCase()));
  if (schedule) tests.push((one) => one.schedule === schedule);
  return tests.length ? (one) => tests.every((test) => test(one)) : null;
}
