// The text that Prometheus reads (`GET /metrics`), for the pages that show figures of it.

const labels = (text) => Object.fromEntries([...text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((one) => [one[1], one[2]]));

export class Metrics {
  constructor(text) {
    this.samples = [];
    for (const line of text.split("\n")) {
      const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
      if (found) this.samples.push([found[1], labels(found[2] ?? ""), Number(found[3].replace("+Inf", "Infinity"))]);
    }
  }

  has(prefix) { return this.samples.some(([name]) => name.startsWith(prefix)); }

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

  /** The bounds that are set, and how much of each is taken: [{ name, bound, used }]. */
  limits() {
    const used = new Map(this.all("fasti_limit_used").map(([of, value]) => [of.name, value]));
    return this.all("fasti_limit").map(([of, bound]) => ({ name: of.name, bound, used: used.get(of.name) })).filter((one) => one.used !== undefined);
  }
}
