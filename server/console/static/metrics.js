// The text that Prometheus reads (`GET /metrics`), for the pages that show figures of it.

const labels = (text) => Object.fromEntries([...text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((one) => [one[1], one[2]]));

/** What the bounds of the server are called on pages; a new one has its own name. */
const LIMITS = {
  "limits.memory": "Memory of the server", "limits.pool_bytes": "Unread and unsent bytes of connections", "http.buffered_bytes": "HTTP answers in preparation",
  "limits.sessions": "Sessions", "limits.groups": "Groups", "limits.subscriptions": "Subscriptions", "limits.subscription_bytes": "Filters of subscriptions, in bytes",
  "limits.pending": "Pending messages and retries", "limits.schedules": "Schedules", "limits.endpoints": "Endpoints", "limits.retained": "Retained messages",
  "limits.queued": "Writes that wait for the disk", "limits.queued_bytes": "Writes that wait for the disk, in bytes", "limits.waiting_pulls": "Workers that wait for a message",
  "limits.leases": "Messages that workers hold", "limits.connections": "MQTT connections", "limits.returned": "Messages that workers gave back", "limits.route_cache_bytes": "Cache of topics and their receivers",
  "http.connections": "HTTP connections", "dead.max_messages": "Dead letters", "dead.max_bytes": "Dead letters, in bytes", "slices.max": "Slices",
  "wheel.max_entries": "Messages that are due soon, in memory", "wheel.max_bytes": "Messages that are due soon, in bytes",
  "tail.max_entries": "Recent messages, in memory", "tail.max_bytes": "Recent messages, in bytes",
};
/** Bounds that are taken whole in everyday use. */
const CACHES = /^(wheel|tail)\.|^limits\.route_cache_bytes$/;

export class Metrics {
  constructor(text) {
    this.samples = [];
    for (const line of text.split("\n")) {
      const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
      if (found) this.samples.push([found[1], labels(found[2] ?? ""), Number(found[3].replace("+Inf", "Infinity"))]);
    }
  }

  has(prefix) { return this.samples.some(([name]) => name.startsWith(prefix)); }

  /** False: the key may not know what clients do, so only a few figures came. */
  get isWhole() { return this.has("fasti_sync_seconds"); }

  value(name) { return this.samples.find(([one]) => one === name)?.[2]; }

  all(name) { return this.samples.filter(([one]) => one === name).map(([, of, value]) => [of, value]); }

  /** [upper bound in s, how many], not added up. */
  histogram(name) {
    let before = 0;
    return this.all(`${name}_bucket`).map(([of, value]) => {
      const own = value - before;
      before = value;
      return [Number(of.le.replace("+Inf", "Infinity")), own];
    });
  }

  /** The bounds and how much of each is taken: [{ name, title, bound, used, isBytes, isCache }]; bound 0: none. */
  limits() {
    const used = new Map(this.all("fasti_limit_used").map(([of, value]) => [of.name, value]));
    return this.all("fasti_limit").filter(([{ name }]) => used.has(name)).map(([{ name }, bound]) => (
      { name, title: LIMITS[name] ?? name, bound, used: used.get(name), isBytes: /bytes$|memory$/.test(name), isCache: CACHES.test(name) }));
  }
}
