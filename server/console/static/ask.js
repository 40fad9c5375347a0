// Questions to the user: a dialog with a form, and notices of what came of it.

import { button, entries, fill, h } from "./dom.js";
import { count } from "./format.js";

const SHORT_MS = 6_000, LONG_MS = 12_000;

/** Show a dialog; a promise of `answer(form)`, null if its user has closed it. `answer` may throw: what it says
 *  is shown in the dialog, which stays. `act` null: there is nothing to do but to close it. It closes when its user goes
 *  to another page, unless it `stays`. What has begun goes on when it is closed, and is told all the same. */
export function dialog(title, children, { act = "OK", kind = "act", answer = () => true, stays = false } = {}) {
  return new Promise((resolve) => {
    const said = h("p", { class: "field-error", role: "alert" });
    const submit = act === null ? null : h("button", { class: kind }, act);
    const form = h("form", { method: "dialog" }, h("h1", { id: "dialog-title" }, title), children, said,
      h("div", { class: "row" }, button("Close", () => box.close()), submit));
    const box = h("dialog", { "aria-labelledby": "dialog-title" }, form);
    const left = new AbortController();
    let acting = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!submit || submit.disabled) return;
      submit.disabled = true;
      acting = (async () => answer(form))();
      try {
        await acting;
        box.close();
      } catch (error) {
        acting = null;
        if (box.open) fill(said, reasons(error));
        else notice(reasons(error), "bad");
      }
      submit.disabled = false;
    });
    box.addEventListener("close", () => { left.abort(); box.remove(); resolve(acting?.catch(() => null) ?? null); });
    if (!stays) addEventListener("hashchange", () => box.close(), { signal: left.signal });
    document.body.append(box);
    box.showModal();
  });
}

/** Whether its user means it: for an act that cannot be taken back. */
export const confirm = async (title, text, act) => (await dialog(title, h("p", {}, text), { act, kind: "danger" })) === true;

/** Say it in the corner, for a while. `undo`: takes it back, by a button of the notice. */
export function notice(text, kind = "good", undo = null) {
  const line = h("p", { class: `notice ${kind}` }, text, undo ? button("Undo", () => { line.remove(); undo(); }) : null);
  document.getElementById("notices").append(line);
  setTimeout(() => line.remove(), kind === "bad" || undo ? LONG_MS : SHORT_MS);
}

/** What a problem says, each reason once, with the fields. */
export function reasons(error) {
  const fields = (error.errors ?? []).map(({ field, detail }) => (field ? `${field}: ${detail}` : detail));
  return fields.length ? [...new Set(fields)].join("; ") : error.message;
}

/** Do it, and say what came of it; `done` null: only if it went wrong. True if it went well. */
export async function attempt(action, done, undo = null) {
  try {
    const result = await action();
    if (done !== null) notice(typeof done === "function" ? done(result) : done, "good", undo);
    return true;
  } catch (error) {
    notice(reasons(error), "bad");
    return false;
  }
}

/** Change many: first what it would change, then, if its user means it, the change. `run(fields)` calls the API and
 *  gives { matched, changed }; the first time with `dry_run`, then with what the dry run answered in `after`.
 *  `what`: what matches, in words, of one and of many; `would`: what happens to them; `ask`: fields of the dialog. Gives the result, or null. */
export async function dryRun({ what, would, act, kind = "act", ask = null, run }) {
  let tried;
  try { tried = await run({ dry_run: true }); } catch (error) { notice(reasons(error), "bad"); return null; }
  const result = await dialog(tried.matched ? act : "Nothing matches", [
    h("p", {}, h("strong", {}, count(tried.matched)), ` ${what[tried.matched === 1 ? 0 : 1]} ${tried.matched ? `would ${would}. Nothing has changed yet.` : "match."}`),
    tried.matched ? ask : null,
  ], { act: tried.matched ? act : null, kind, answer: (form) => run({ ...entries(form), after: tried }) });
  if (result) {
    const late = result.matched - result.changed;
    notice(`${count(result.changed)} of ${count(result.matched)} changed${late ? `; ${count(late)} ${late === 1 ? "was" : "were"} too late` : ""}`);
  }
  return result;
}
