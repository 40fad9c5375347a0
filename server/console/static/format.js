// Values as people read them. Times are shown in the zone of the browser or in UTC, as its user has chosen.

const MINUTE = 60_000, HOUR = 3_600_000, DAY = 86_400_000, YEAR = 365 * DAY;
export { MINUTE, HOUR, DAY };

export const zone = {
  get isUtc() { return localStorage.getItem("fasti-zone") === "utc"; },
  set isUtc(value) { localStorage.setItem("fasti-zone", value ? "utc" : "local"); },
  get local() { return Intl.DateTimeFormat().resolvedOptions().timeZone; },
  get name() { return this.isUtc ? "UTC" : this.local; },
};

/** The time of the server: that of the browser may be wrong, or the server's simulated. */
export const server = {
  ahead: 0,
  hear(text) { this.ahead = Date.parse(text) - Date.now(); },
  now() { return Date.now() + this.ahead; },
};

/** The parts of a time (ms) as the clock on the wall of the chosen zone shows them. */
function parts(ms) {
  const time = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  const [year, month, day, hour, minute, second] = zone.isUtc
    ? [time.getUTCFullYear(), time.getUTCMonth(), time.getUTCDate(), time.getUTCHours(), time.getUTCMinutes(), time.getUTCSeconds()]
    : [time.getFullYear(), time.getMonth(), time.getDate(), time.getHours(), time.getMinutes(), time.getSeconds()];
  return { date: `${year}-${two(month + 1)}-${two(day)}`, clock: `${two(hour)}:${two(minute)}`, second: two(second), milli: String(time.getUTCMilliseconds()).padStart(3, "0") };
}

export const day = (ms) => parts(ms).date;
export const clock = (ms) => parts(ms).clock;

/** A time of the API (text or ms) with seconds and, if there are some, ms. */
export function instant(value) {
  if (value === null || value === undefined) return "–";
  const ms = typeof value === "number" ? value : Date.parse(value);
  const { date, clock: hm, second, milli } = parts(ms);
  return `${date} ${hm}:${second}${milli === "000" ? "" : `.${milli}`}`;
}

/** A time with its zone and, if that is another, UTC. */
export function both(value) {
  const ms = typeof value === "number" ? value : Date.parse(value);
  const utc = new Date(ms).toISOString();
  return zone.isUtc || zone.local === "UTC" ? `${instant(ms)} UTC` : `${instant(ms)} ${zone.local} (${utc.slice(0, 10) === day(ms) ? "" : `${utc.slice(0, 10)} `}${utc.slice(11, 19)} UTC)`;
}

/** The beginning of the day (ms) in the chosen zone. */
export function midnight(ms) {
  const time = new Date(ms);
  return zone.isUtc ? Date.UTC(time.getUTCFullYear(), time.getUTCMonth(), time.getUTCDate()) : new Date(time.getFullYear(), time.getMonth(), time.getDate()).getTime();
}

/** "in 3 h", "2 min ago". */
export function away(value, nowMs) {
  const ms = (typeof value === "number" ? value : Date.parse(value)) - nowMs;
  return ms >= 0 ? `in ${span(ms)}` : `${span(-ms)} ago`;
}

/** A length of time (ms), its two largest units. */
export function span(ms) {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  const units = [[YEAR, "years"], [DAY, "d"], [HOUR, "h"], [MINUTE, "min"], [1_000, "s"]];
  const first = units.findIndex(([size]) => ms >= size);
  let left = Math.round(ms / 1_000) * 1_000;
  const said = [];
  for (const [size, name] of units.slice(first, first + 2)) {
    const count = Math.floor(left / size);
    if (count) said.push(`${count} ${count === 1 && size === YEAR ? "year" : name}`);
    left -= count * size;
  }
  return said.join(" ") || "1 s";
}

export const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

/** 0.8 -> "80 %". */
export const percent = (share) => `${share > 0 && share < 0.01 ? "< 1" : Math.round(share * 100)} %`;

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (value >= 1_024 && index < units.length - 1) { value /= 1_024; index += 1; }
  return `${index ? value.toFixed(1) : value} ${units[index]}`;
}

/** A time as a person writes it, for the API: what has a zone or is a number goes as it is; a date and a time
 *  alone are of the chosen zone. */
export function toApi(text) {
  const local = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d))?)?$/.exec(text);
  if (!local) return text;
  const wall = `${local[1]}T${local[2] ?? "00:00"}:${local[3] ?? "00"}`;
  return zone.isUtc ? `${wall}Z` : `${wall}[${zone.name}]`;
}
