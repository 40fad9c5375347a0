// Questions to the user: a dialog with a form, and notices of what came of it.

import { button, h } from "./dom.js";

/** Show a dialog; a promise of `answer(form)`, null if its user has closed it. `answer` may throw: what it says
 *  is shown in the dialog, which stays. `act` null: there is nothing to do but to close it. */
export function dialog(title, children, { act = "OK", kind = "act", answer = () => true } = {}) {
  return new Promise((resolve) => {
    const said = h("p", { class: "field-error", role: "alert" });
    const submit = act === null ? null : h("button", { class: kind }, act);
    const form = h("form", { method: "dialog" }, h("h1", { id: "dialog-title" }, title), children, said,
      h("div", { class: "row" }, button("Close", () => box.close()), submit));
    const box = h("dialog", { "aria-labelledby": "dialog-title" }, form);
    let result = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!submit) return;
      submit.disabled = true;
      try {
        result = await answer(form);
        box.close();
      } catch (error) {
        said.textContent = reasons(error);
      }
      submit.disabled = false;
    });
    box.addEventListener("close", () => { box.remove(); resolve(result); });
    document.body.append(box);
    box.showModal();
  });
}

/** Say it in the corner, for a while. */
export function notice(text, kind = "good") {
  const line = h("p", { class: `notice ${kind}` }, text);
  document.getElementById("notices").append(line);
  setTimeout(() => line.remove(), kind === "bad" ? 12_000 : 6_000);
}

/** What a problem says, each reason once, with the fields. */
export function reasons(error) {
  const fields = (error.errors ?? []).map(({ field, detail }) => (field ? `${field}: ${detail}` : detail));
  return fields.length ? [...new Set(fields)].join("; ") : error.message;
}

/** Do it, and say what came of it; `done` null: only if it went wrong. True if it went well. */
export async function attempt(action, done) {
  try {
    const result = await action();
    if (done !== null) notice(typeof done === "function" ? done(result) : done);
    return true;
  } catch (error) {
    notice(reasons(error), "bad");
    return false;
  }
}
