// Formats times, money and names.

import { h } from "./dom.js";

let skew = 0; // seconds by which the queue's clock is ahead of this browser's

export function setClock(now) {
  skew = now - Date.now() / 1000;
}

export function now() {
  return Date.now() / 1000 + skew;
}

export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(1).replace(/\.0$/, "") : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return parts(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return parts(Math.floor(s / 86400), "d", Math.floor((s % 86400) / 3600), "h");
}

function parts(large, unit, small, smaller) {
  return small ? `${large} ${unit} ${small} ${smaller}` : `${large} ${unit}`;
}

export function ago(at) {
  const seconds = now() - at;
  if (Math.abs(seconds) < 2) return "just now";
  return seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
}

// A relative time, with the exact time on hover. `main.js` updates it as time passes.
export function when(at) {
  if (at === null || at === undefined) return "–";
  const exact = new Date(at * 1000);
  return h("time", { datetime: exact.toISOString(), title: exact.toLocaleString(), "data-at": at }, ago(at));
}

export function money(dollars) {
  if (dollars === null || dollars === undefined) return "–";
  return `$${dollars.toFixed(Math.abs(dollars) < 0.1 && dollars !== 0 ? 4 : 2)}`;
}

export function count(number) {
  return number === null || number === undefined ? "–" : Number(number).toLocaleString("en");
}

export function percent(part, whole) {
  return whole ? Math.round((100 * part) / whole) : 0;
}

export function shortId(id) {
  return id ? `…${id.slice(-6)}` : "–";
}

export function label(word) {
  const text = String(word).replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// Capitalizes a message of the server; names in it stay as they are.
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
