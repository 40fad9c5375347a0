// A payload as text, as JSON, as bytes: what it is stays text whatever is in it.

import { parse } from "./api.js";
import { button, h, plain } from "./dom.js";
import { bytes as size } from "./format.js";

const MOST = 65_536;

/** `message` as the API gives it. */
export function payload(message) {
  if (message.payload === undefined) return h("p", { class: "faint" }, "none");
  const bytes = bytesOf(message);
  const text = new TextDecoder("utf-8", { fatal: false }).decode(bytes);
  const views = { Text: () => text, Hex: () => hex(bytes) };
  const parsed = json(text);
  if (parsed !== undefined) views.JSON = () => JSON.stringify(parsed, null, 2);
  const shown = h("pre", { tabindex: "0", "aria-label": "Payload" });
  const buttons = Object.keys(views).map((name) => button(name, () => look(name)));
  const look = (name) => {
    const whole = views[name]();
    shown.textContent = plain(whole.slice(0, MOST)) + (whole.length > MOST ? `\n… ${whole.length - MOST} characters more` : "");
    buttons.forEach((one) => one.setAttribute("aria-pressed", one.textContent === name));
  };
  look(views.JSON ? "JSON" : isPrintable(text) ? "Text" : "Hex");
  return h("div", {}, h("div", { class: "row" }, buttons, h("span", { class: "faint" }, size(bytes.length))), shown);
}

/** The beginning of it, on one line. */
export function glimpse(message, most = 80) {
  if (message.payload === undefined) return "";
  if (message.encoding === "base64") return `base64:${message.payload.slice(0, most)}`;
  const text = typeof message.payload === "string" ? message.payload : JSON.stringify(message.payload);
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** All of it as text. */
export const textOf = (message) => (message.payload === undefined ? "" : isText(message) ? message.payload : new TextDecoder().decode(bytesOf(message)));

const isText = (message) => typeof message.payload === "string" && !["json", "base64"].includes(message.encoding);

function bytesOf(message) {
  if (message.encoding === "base64") return Uint8Array.from(atob(message.payload), (one) => one.charCodeAt(0));
  return new TextEncoder().encode(isText(message) ? message.payload : JSON.stringify(message.payload));
}

function json(text) {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try { return parse(text); } catch { return undefined; }
}

const isPrintable = (text) => !/[\u0000-\u0008\u000e-\u001f\ufffd]/.test(text);

/** 16 bytes a line: where, the bytes, what is ASCII of them. */
function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, MOST / 4); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const left = row.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const right = row.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${left.padEnd(47)}  ${right}`);
  }
  return lines.join("\n");
}
