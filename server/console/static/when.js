// Times as a person types them, reckoned in the page: for a preview, and to search from. The server reads the same texts.

import { field, h } from "./dom.js";
import { away, both, server, toApi, zone, DAY, HOUR, MINUTE } from "./format.js";

const SECOND = 1_000;
const UNITS = [[7 * DAY, "w(?:ks?|eeks?)?"], [DAY, "d(?:ays?)?"], [HOUR, "h(?:(?:ou)?rs?)?"], [MINUTE, "m(?:in(?:ute)?s?)?"], [SECOND, "s(?:ec(?:ond)?s?)?"], [1, "ms"]];
const SHORT = new RegExp(`^${UNITS.map(([, name]) => `(?: ?(?:and )?(\\d+(?:[.,]\\d+)?) ?${name}(?![a-z]))?`).join("")}$`);
const PERIOD = /^P(?:([\d.,]+)W)?(?:([\d.,]+)D)?(?:T(?:([\d.,]+)H)?(?:([\d.,]+)M)?(?:([\d.,]+)S)?)?$/i;

/** A time ("2026-12-24 09:00" in the chosen zone, or with an offset) in ms; NaN: not one, or of a zone that only the server knows. */
export function msOf(text) {
  if (/^\d{9,}$/.test(text)) return Number(text);
  const [wall, name] = /^(.*)\[(.+)\]$/.exec(toApi(text))?.slice(1) ?? [toApi(text)];
  if (name && name !== zone.local) return NaN;
  return name || /^\d{4}-\d\d-\d\dT.*(Z|[+-]\d\d:?\d\d)$/.test(wall) ? new Date(wall).getTime() : NaN;
}

/** A delay ("15m", "2h30m", "PT15M", seconds; "-15m" back) in ms; NaN: not one that is understood here. */
export function delayMs(text) {
  if (text.startsWith("-")) return -delayMs(text.slice(1));
  if (/^\d+(\.\d+)?$/.test(text)) return Math.round(Number(text) * SECOND);
  const found = text && (SHORT.exec(text) ?? PERIOD.exec(text));
  const parts = found ? found.slice(1) : [];
  return parts.some(Boolean) ? parts.reduce((sum, part, index) => sum + (part ? Number(part.replace(",", ".")) * UNITS[index][0] : 0), 0) : NaN;
}

/** Two fields for when, and what they mean as they are typed (`empty`: if
 *  nothing is): "Fri 2026-11-27 09:00:00 Europe/Bucharest (07:00:00 UTC), in 3 h". */
export function whenFields(deliver_at = "", empty = "") {
  const said = h("p", { class: "faint hint", role: "status" });
  const later = field("In", "deliver_in", { placeholder: "15m", oninput: say }), at = field(`or at (${zone.name})`, "deliver_at", { value: deliver_at, placeholder: "2026-12-24 09:00", oninput: say });
  function say() {
    const [delay, time] = [later, at].map((one) => one.querySelector("input").value.trim()), now = server.now();
    const ms = delay ? now + delayMs(delay) : msOf(time);
    said.textContent = delay && time ? "Fill in one of the two." : !delay && !time ? empty
      : Math.abs(ms) < 8.64e15 ? `${weekday(ms)} ${both(Math.round(ms / SECOND) * SECOND)}, ${away(ms, now)}` : "Not understood here: the server decides.";
  }
  say();
  return [later, at, said];
}

/** What those two say, as the API takes it. */
export const whenOf = ({ deliver_in, deliver_at }) => ({ ...(deliver_in ? { deliver_in } : {}), ...(deliver_at ? { deliver_at: toApi(deliver_at) } : {}) });

const weekday = (ms) => new Date(ms).toLocaleDateString("en", { weekday: "short", timeZone: zone.isUtc ? "UTC" : zone.local });
