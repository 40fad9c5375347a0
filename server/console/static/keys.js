// The keyboard: `/` searches, `g` and a letter opens a page, `?` lists them. A key that is typed into a field is text.

import { dialog } from "./ask.js";
import { facts, h } from "./dom.js";

/** How long `g` waits for its letter. */
const WAIT_MS = 1_500;

/** Listen for as long as the page is there. `pages`: [name, title, letter]; `box`: the search field. */
export function listen(pages, go, box) {
  let since = -Infinity;
  const help = () => dialog("Keyboard", facts([
    ["/", "find messages"],
    ...pages.map(([, title, letter]) => [`g ${letter}`, title]),
    ["?", "this list"],
    ["Esc", "close a dialog"],
  ].map(([key, what]) => [h("kbd", {}, key), what])), { act: null });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
    const page = event.timeStamp - since < WAIT_MS && pages.find(([, , letter]) => letter === event.key);
    since = event.key === "g" ? event.timeStamp : -Infinity;
    if (page) go(`/${page[0]}`);
    else if (event.key === "/") box.focus();
    else if (event.key === "?") help();
    else return;
    event.preventDefault();
  });
  return { help };
}
