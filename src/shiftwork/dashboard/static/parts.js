// The components of pages.

import { h } from "./dom.js";
import { to } from "./route.js";
import { label, percent, shortId } from "./words.js";

export function link(path, ...content) {
  return h("a", { href: to(path), "data-inside": true }, ...content);
}

export function taskLink(id, title) {
  return link(`/tasks/${id}`, title ?? h("code", { title: id }, shortId(id)));
}

export function chip(status) {
  return h("span", { class: `chip is-${status}` }, label(status));
}

export function isScheduled(task) {
  return task.status === "pending" && task.hold === "scheduled";
}

// A task's state; a task that waits for its start time is shown as scheduled.
export function stateOf(task) {
  return isScheduled(task) ? h("span", { class: "chip is-pending" }, "Scheduled") : chip(task.status);
}

export function badge(word, tone = "plain") {
  return h("span", { class: `badge ${tone}` }, word);
}

export function panel(title, { actions = null, note = null, id = null, wide = false } = {}, ...content) {
  const heading = id ?? `h-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  return h(
    "section",
    { class: wide ? "panel wide" : "panel", "aria-labelledby": heading, "data-key": heading },
    h("header", {}, h("h2", { id: heading }, title), note && h("span", { class: "note" }, note), actions),
    ...content,
  );
}

export function empty(what, hint) {
  return h("div", { class: "empty" }, h("p", { class: "strong" }, what), hint && h("p", {}, hint));
}

export function table(caption, columns, rows, { none, each } = {}) {
  if (!rows.length) return none ?? empty("Nothing here");
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.class }, column.head || column.title || h("span", { class: "hidden" }, "Actions"))));
  const body = rows.map((row) =>
    h(
      "tr",
      { "data-key": each?.(row)?.key, class: each?.(row)?.href ? "opens" : null, "data-href": each?.(row)?.href },
      columns.map((column) => h("td", { class: column.class, "data-label": column.title }, column.cell(row))),
    ),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, head), h("tbody", {}, body)),
  );
}

export function meter(part, whole, title, tone = "") {
  const full = Math.min(100, percent(part, whole));
  return h(
    "span",
    { class: `meter ${tone}`, role: "img", "aria-label": `${title}: ${full} %`, title: `${title}: ${full} %` },
    h("span", { class: "fill", style: { width: `${full}%` } }),
  );
}

// A bar divided into parts, with a legend below.
export function parted(title, parts) {
  const shown = parts.filter((part) => part.value > 0);
  const summary = shown.map((part) => `${part.name} ${part.value}`).join(", ") || "nothing";
  return h(
    "div",
    { class: "parted" },
    h(
      "div",
      { class: "bar", role: "img", "aria-label": `${title}: ${summary}` },
      shown.map((part) => h("span", { class: `part ${part.tone}`, style: { "flex-grow": part.value }, title: `${part.name}: ${part.value}` })),
    ),
    h("ul", { class: "legend" }, parts.map((part) => h("li", {}, h("i", { class: `dot ${part.tone}` }), part.name, " ", h("b", {}, part.value)))),
  );
}

export function sparkline(values, title) {
  const width = 240;
  const height = 44;
  const top = Math.max(1, ...values);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, place) => `${(place * step).toFixed(1)},${(height - 3 - (value / top) * (height - 8)).toFixed(1)}`);
  const line = points.join(" ");
  return h(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
    values.length > 1 && h("path", { class: "area", d: `M0,${height} L${points.join(" L")} L${width},${height} Z` }),
    values.length > 1 && h("polyline", { class: "line", points: line }),
  );
}

export function json(value) {
  const text = value === null || value === undefined ? "nothing" : typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return h("pre", { tabindex: "0" }, text);
}

export function facts(pairs) {
  const kept = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, kept.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function button(text, act, { tone = "", title = null, disabled = false } = {}) {
  return h("button", { type: "button", class: tone, onclick: act, title, disabled }, text);
}

export function toast(message, tone = "good") {
  const note = h("div", { class: `toast ${tone}` }, message, h("button", { type: "button", "aria-label": "Dismiss", onclick: () => note.remove() }, "×"));
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), tone === "bad" ? 12000 : 5000);
}

// Performs an action that may be refused, and shows the outcome.
export async function attempt(what, action) {
  try {
    await action();
    toast(what);
    return true;
  } catch (error) {
    toast([h("b", {}, error.message), error.hint ? ` ${error.hint}` : ""], "bad");
    return false;
  }
}

// Asks with a dialog; returns the filled-in fields, or null if it was closed.
export function ask(title, { text = null, fields = [], yes = "OK", tone = "primary" } = {}) {
  return new Promise((answer) => {
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", { id: "asked" }, title),
      text && h("p", {}, text),
      fields.map((field) =>
        h(
          "label",
          {},
          field.label,
          field.long
            ? h("textarea", { name: field.name, rows: 6, value: field.value ?? "", required: field.required, spellcheck: "false" })
            : h("input", { name: field.name, type: field.type ?? "text", value: field.value ?? "", required: field.required, step: "any", min: field.min, max: field.max, list: field.options ? `known-${field.name}` : null }),
          field.options && h("datalist", { id: `known-${field.name}` }, field.options.map(([value, note]) => h("option", { value }, note))),
          field.hint && h("small", {}, field.hint),
        ),
      ),
      h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close("no") }, "Back"), h("button", { class: tone, value: "yes" }, yes)),
    );
    const dialog = h("dialog", { "aria-labelledby": "asked" }, form);
    dialog.addEventListener("close", () => {
      answer(dialog.returnValue === "yes" ? Object.fromEntries(new FormData(form)) : null);
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
