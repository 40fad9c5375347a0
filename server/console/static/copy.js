// Copying: to the clipboard, and the curl line that schedules a message once more.

import { dialog, notice } from "./ask.js";
import { h } from "./dom.js";

/** Put a text into the clipboard; where the browser lends none (it does so for https and for this machine alone), show it. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    notice(`Copied: ${what}`);
  } catch {
    await dialog(`Copy: ${what}`, h("pre", { tabindex: "0" }, text), { act: null });
  }
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A line for a POSIX shell. A key stays where it is: the line takes it from FASTI_KEY. */
export function curl(path, body, hasKey) {
  const key = hasKey ? ' -H "Authorization: Bearer $FASTI_KEY"' : "";
  return `curl ${quoted(location.origin + path)}${key} -H 'content-type: application/json' -d ${quoted(JSON.stringify(body))}`;
}
