// Keyboard shortcuts: g and a letter opens a section, j and k move between rows, / searches, ? lists them.

import { h } from "./dom.js";
import { go, to } from "./route.js";

let sections = [];
let waiting = false;

export function listen(known) {
  sections = known;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) return;
    const act = waiting ? section(event.key) : ACTIONS[event.key];
    waiting = !waiting && event.key === "g";
    if (act) {
      event.preventDefault();
      act();
    }
  });
}

function section(letter) {
  const found = sections.find(([, , key]) => key === letter);
  return found && (() => go(to(found[0])));
}

const ACTIONS = {
  "?": help,
  "/": () => find(),
  j: () => walk(1),
  k: () => walk(-1),
  Enter: null,
};

// The search field is on the tasks page: from any other page, go there first.
function find(tries = 40) {
  const field = document.querySelector("[data-find]");
  if (field) return field.focus();
  if (tries === 40) go(to("/tasks"));
  if (tries) setTimeout(() => find(tries - 1), 50);
}

function walk(by) {
  const rows = [...document.querySelectorAll("tr[data-href]")];
  const links = rows.map((row) => row.querySelector("a")).filter(Boolean);
  const place = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, place + by))]?.focus();
}

// A click anywhere in a row opens it, unless it hit a control or selected text.
export function openRow(event) {
  const row = event.target.closest?.("tr[data-href]");
  if (!row || event.target.closest("a, button, input, select, label") || String(getSelection())) return;
  go(to(row.dataset.href));
}

export function help() {
  const rows = [["/", "search tasks"], ["j, k", "next and previous row"], ["Enter", "open the row"], ["?", "this list"], ["Esc", "close"]];
  const dialog = h(
    "dialog",
    { "aria-labelledby": "keys" },
    h("h2", { id: "keys" }, "Keyboard"),
    h("dl", { class: "facts" }, [...sections.map(([, name, letter]) => [`g ${letter}`, name]), ...rows].map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("form", { method: "dialog", class: "row end" }, h("button", { class: "primary" }, "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
