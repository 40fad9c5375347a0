// Many messages cancelled or shifted: the selected ones, or all that are pending and match topic and time. A dry run comes first.

import { part } from "./api.js";
import { attempt, dryRun, notice } from "./ask.js";
import { field } from "./dom.js";
import { count } from "./format.js";
import { delayMs } from "./when.js";

const AT_ONCE = 16;
const terms = (verb, what) => (verb === "cancel"
  ? { what, would: "be cancelled: nobody gets them, and that cannot be undone", act: "Cancel them", kind: "danger" }
  : { what, would: "be moved", act: "Shift them", ask: field("Shift by", "shift", { placeholder: "2h, or -15m back", required: true }) });

/** What a topic filter and a range of due times select: by one call. */
export function changeAll(api, verb, filter) {
  const run = ({ dry_run, shift, after }) => (dry_run
    ? api.post("/v1/messages:cancel", { filter, dry_run })
    : api.post(`/v1/messages:${verb}`, { filter, shift, as_of: after.as_of }));
  return dryRun({ ...terms(verb, ["pending message", "pending messages"]), run });
}

/** These messages, one by one. A shift can be undone, but of those that somebody has moved since. */
export async function changeTicked(api, verb, rows, again) {
  const tags = new Map();
  const move = (to) => async (one) => {
    const tag = tags.get(one);
    const moved = await api.fetch("PATCH", `/v1/messages/${part(one.id)}`, { body: { deliver_at: to(one) }, headers: tag ? { "If-Match": tag } : {} });
    tags.set(one, moved.headers.get("ETag"));
  };
  let undo = null;
  async function run({ dry_run, shift }) {
    if (dry_run) return { matched: rows.length, changed: rows.length };
    if (verb === "cancel") return each(rows, (one) => api.remove(`/v1/messages/${part(one.id)}`));
    const by = delayMs(shift);
    if (!Number.isFinite(by)) throw new Error(`${shift} is not a delay such as 2h or -15m`);
    undo = () => attempt(() => each([...tags.keys()], move((one) => one.local ?? one.deliver_at)), ({ matched, changed }) => `${count(changed)} of ${count(matched)} moved back`).then(again);
    return each(rows, move((one) => new Date(Date.parse(one.deliver_at) + by).toISOString()));
  }
  const result = await dryRun({ ...terms(verb, ["selected message", "selected messages"]), run });
  if (result?.changed && undo) notice(`Moved: ${count(result.changed)}`, "good", undo);
  return result;
}

/** Some at a time; too late is no error. */
async function each(rows, change) {
  const left = [...rows];
  let changed = 0;
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    for (let one = left.pop(); one; one = left.pop()) {
      try {
        await change(one);
        changed += 1;
      } catch (error) {
        if (![404, 409, 412].includes(error.status)) { left.length = 0; throw error; }
      }
    }
  }));
  return { matched: rows.length, changed };
}
