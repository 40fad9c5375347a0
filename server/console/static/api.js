// The HTTP API as everybody has it. The key, if one is asked for, is kept for this tab alone, and is sent to
// this server alone.

const KEY = "fasti-key";

/** What the server says no with: RFC 9457. */
export class Problem extends Error {
  constructor(status, body) {
    super([body.title ?? `HTTP ${status}`, body.detail].filter(Boolean).join(": "));
    this.status = status;
    this.slug = (body.type ?? "").split("/").pop();
    this.errors = body.errors ?? [];
    this.body = body;
  }
}

export class Api {
  /** `askKey(why)`: a promise of a key, or null. */
  constructor(askKey) {
    this.askKey = askKey;
    this.asking = null;
    /** Its user was asked for a key and has given none: nobody asks again before another page is opened. */
    this.isRefused = false;
    /** Called when there is another key. */
    this.onKey = () => {};
  }

  get key() { return sessionStorage.getItem(KEY); }

  set key(value) { value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY); }

  get = (path, query) => this.call("GET", path, { query });
  post = (path, body, query) => this.call("POST", path, { body, query });
  put = (path, body) => this.call("PUT", path, { body });
  patch = (path, body) => this.call("PATCH", path, { body });
  remove = (path, query) => this.call("DELETE", path, { query });

  /** All of a list: follows `next`, up to `most` rows. `each(rows, next)`: what has been read so far, after each page; an
   *  aborted `signal` ends it. Gives { rows, isWhole }. */
  async all(path, query, member, { most = 5_000, each = () => {}, signal } = {}) {
    const rows = [];
    let cursor;
    do {
      const page = await this.call("GET", path, { query: { limit: Math.min(1_000, most), ...query, cursor }, signal });
      rows.push(...page[member]);
      cursor = page.next;
      each(rows, cursor);
    } while (cursor && rows.length < most && !signal?.aborted);
    return { rows, isWhole: !cursor };
  }

  /** The answer's JSON, or its text. Throws Problem, and TypeError where there is no server. */
  async call(method, path, { query = {}, body, headers = {}, signal } = {}) {
    const response = await this.fetch(method, path, { query, body, headers, signal });
    const isJson = (response.headers.get("Content-Type") ?? "").includes("json");
    return isJson ? answer(await response.text()) : response.text();
  }

  /** The answer itself, if it is no problem. With a wrong key or none its user is asked for one, if `asks`. */
  async fetch(method, path, { query = {}, body, headers = {}, signal, asks = true } = {}) {
    for (;;) {
      const shown = this.key;
      const response = await fetch(path + search(query), {
        method, signal, cache: "no-store", redirect: "manual",
        headers: {
          ...(shown ? { Authorization: `Bearer ${shown}` } : {}),
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
          ...headers,
        },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      if (response.ok) return response;
      // Of a cluster's node that does not lead. No page may follow there, but its user's browser goes by itself.
      if (response.type === "opaqueredirect") throw new Problem(307, { title: "Another node leads now", detail: "reload this page to see it" });
      const problem = new Problem(response.status, await response.json().catch(() => ({})));
      if (response.status !== 401) throw problem;
      // Another call may have been given a key in the meantime: then that one is tried.
      if (shown === this.key && !(asks && !this.isRefused && (await this.askOnce(problem.message)))) throw problem;
    }
  }

  /** Whether there is a key now; several calls ask as one. */
  async askOnce(why) {
    this.asking ??= this.askKey(why).finally(() => { this.asking = null; });
    const key = await this.asking;
    if (key) {
      this.key = key;
      this.onKey();
    }
    this.isRefused = !key;
    return Boolean(key);
  }
}

/** JSON whose numbers are as they were written: one that a double cannot hold is kept as its text, which
 *  `JSON.stringify` gives back. A browser that cannot do that yet reads the nearest double. */
export function parse(text) {
  if (!JSON.rawJSON) return JSON.parse(text);
  return JSON.parse(text, (_, value, { source }) => (typeof value === "number" && !Number.isSafeInteger(value) && String(value) !== source ? JSON.rawJSON(source) : value));
}

/** An answer: in a payload numbers are as they were written, elsewhere they are to be reckoned with. */
export const answer = (text) => exact(JSON.parse(text), JSON.rawJSON ? parse(text) : {});

function exact(value, written) {
  if (typeof value !== "object" || value === null) return value;
  for (const [name, one] of Object.entries(value)) {
    if (name === "payload") value.payload = written.payload ?? one;
    else exact(one, written[name] ?? {});
  }
  return value;
}

/** What this key may not see, or this server has not, is left out. */
export function denied(error) {
  if (error instanceof Problem && [403, 404].includes(error.status)) return null;
  throw error;
}

export function search(query) {
  const said = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return said.length ? `?${new URLSearchParams(said)}` : "";
}

export const part = encodeURIComponent;
