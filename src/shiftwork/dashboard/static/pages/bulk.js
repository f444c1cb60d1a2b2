// Bulk actions on the selected tasks, or on all that match the filters. Counts the tasks first, then asks to confirm.

import { change, post } from "../api.js";
import { h } from "../dom.js";
import { ask, button, toast } from "../parts.js";
import { plural } from "../words.js";

const OPEN = ["pending", "waiting_approval", "ready", "retrying"];
const HELD = ["claimed", "running", "validating"];
const SETTLED = ["failed", "dead_lettered"];
const ACTIONS = {
  cancel: { name: "Cancel", done: "cancelled", tone: "danger", states: [...OPEN, ...HELD, ...SETTLED], text: "Agents that hold them are asked to stop, and dependents are cancelled.", field: { name: "reason", label: "Reason" } },
  retry: { name: "Retry", done: "retried", tone: "primary", states: SETTLED, text: "Dead letters and failed tasks get new attempts.", field: { name: "reason", label: "Note (kept with the decision)" } },
  set_priority: { name: "Set priority", asked: "Set the priority of", yes: "Change", done: "changed", tone: "primary", states: OPEN, text: "0 is the most urgent, 100 the least.", field: { name: "priority", label: "Priority", type: "number", min: 0, max: 100, required: true } },
  purge: { name: "Purge", done: "purged", tone: "danger", states: OPEN, text: "They are cancelled or deleted, as the setting purge.mode says.", field: null },
};

// The selection of a page; other filters start with an empty one.
export function chosenOf(local) {
  if (local.chosenFor !== location.search) Object.assign(local, { chosenFor: location.search, chosen: new Set(), all: false });
  return local.chosen;
}

export function box(task, ctx) {
  const chosen = chosenOf(ctx.local);
  const toggle = () => {
    if (!chosen.delete(task.id)) chosen.add(task.id);
    ctx.local.all = false;
    ctx.redraw();
  };
  return h("input", { type: "checkbox", checked: ctx.local.all || chosen.has(task.id), onchange: toggle, "aria-label": `Select ${task.title ?? task.id}` });
}

export function boxOfAll(tasks, ctx) {
  const chosen = chosenOf(ctx.local);
  const full = tasks.length > 0 && tasks.every((task) => chosen.has(task.id));
  const toggle = () => {
    for (const task of tasks) full ? chosen.delete(task.id) : chosen.add(task.id);
    ctx.local.all = false;
    ctx.redraw();
  };
  return h("input", { type: "checkbox", checked: ctx.local.all || full, onchange: toggle, "aria-label": "Select all on this page" });
}

// The bar above the list: the number of selected tasks, and their actions.
export function bar(tasks, where, more, ctx) {
  const chosen = chosenOf(ctx.local);
  if (!chosen.size && !ctx.local.all) return null;
  const picked = tasks.filter((task) => chosen.has(task.id));
  const all = () => {
    ctx.local.all = true;
    ctx.redraw();
  };
  const page = () => {
    for (const task of tasks) chosen.add(task.id);
    ctx.redraw();
  };
  const none = () => {
    chosen.clear();
    ctx.local.all = false;
    ctx.redraw();
  };
  const filtered = Object.keys(where).length > 0;
  return h(
    "div",
    { class: "bulk", role: "toolbar", "aria-label": "Selected tasks", "data-key": "bulk" },
    h("b", {}, ctx.local.all ? "All matching tasks" : `${picked.length} selected`),
    !ctx.local.all && picked.length < tasks.length ? button("Select this page", page, { tone: "quiet" }) : null,
    !ctx.local.all && filtered && more && picked.length === tasks.length ? button("Select all matching tasks", all, { tone: "quiet" }) : null,
    Object.entries(ACTIONS).map(([action, each]) => (action === "purge" && !ctx.local.all ? null : button(each.name, () => (ctx.local.all ? everything(action, where, ctx) : these(action, picked, ctx)), { tone: each.tone === "danger" ? "danger" : "" }))),
    button("Clear selection", none, { tone: "quiet" }),
  );
}

function confirm(action, number, more = "") {
  const { name, asked = name, yes = name, text, tone, field } = ACTIONS[action];
  return ask(`${asked} ${plural(number, "task")}?`, { text: `${text}${more}`, fields: field ? [field] : [], yes: `${yes} ${plural(number, "task")}`, tone });
}

// Change the selected tasks one after the other.
async function these(action, picked, ctx) {
  const fit = picked.filter((task) => ACTIONS[action].states.includes(task.status));
  if (!fit.length) return toast(`None of them can be ${ACTIONS[action].done}: ${action === "retry" ? "only dead letters and failed tasks can" : "they have ended or are claimed"}.`, "bad");
  const left = picked.length - fit.length;
  const filled = await confirm(action, fit.length, left ? ` ${plural(left, "other")} cannot, and stay as they are.` : "");
  if (!filled) return;
  let done = 0;
  let refused = null;
  for (const task of fit) {
    try {
      await one(action, task, filled);
      done += 1;
    } catch (error) {
      refused = error;
    }
  }
  await afresh(ctx);
  toast([`${done} ${ACTIONS[action].done}`, refused ? `, ${fit.length - done} skipped: ${refused.message}` : "."], refused ? "bad" : "good");
}

// Reload with an empty selection, so that a new selection is made from the current tasks.
async function afresh(ctx) {
  chosenOf(ctx.local).clear();
  Object.assign(ctx.local, { all: false, progress: null });
  await ctx.reload();
}

function one(action, task, filled) {
  const path = `/api/tasks/${task.id}`;
  if (action === "cancel") return post(`${path}/cancel`, filled.reason ? { reason: filled.reason } : {});
  if (action === "retry") return post(`/api/dead-letters/${task.id}/review`, { decision: "retry", ...(filled.reason ? { note: filled.reason } : {}) });
  return change(path, { priority: Number(filled.priority) });
}

// Change all matching tasks: count them first, then go page by page.
async function everything(action, where, ctx) {
  let outcome;
  try {
    if (where.status) {
      const fit = where.status.split(",").filter((state) => ACTIONS[action].states.includes(state));
      if (!fit.length) return toast(`No matching task can be ${ACTIONS[action].done}.`, "bad");
      where = { ...where, status: fit };
    }
    const known = action === "set_priority" ? { priority: 50 } : {};
    const counted = await post("/api/bulk", { action, where, dry_run: true, ...known });
    const total = Object.values(counted.counts).reduce((sum, each) => sum + each, 0);
    if (!total) return toast(`No matching task can be ${ACTIONS[action].done}.`, "bad");
    const filled = await confirm(action, total);
    if (!filled) return;
    const body = { action, where, as_of: counted.as_of };
    if (filled.reason) body.reason = filled.reason;
    if (filled.priority) body.priority = Number(filled.priority);
    const { changed, skipped } = await pages(body, total, ctx);
    outcome = [`${changed.toLocaleString("en")} ${ACTIONS[action].done}${skipped ? `, ${skipped.toLocaleString("en")} skipped` : ""}.`];
  } catch (error) {
    outcome = [[h("b", {}, error.message), error.hint ? ` ${error.hint}` : ""], "bad"];
  }
  await afresh(ctx);
  toast(...outcome);
}

async function pages(body, total, ctx) {
  let changed = 0;
  let skipped = 0;
  for (let after; ; ) {
    const page = await post("/api/bulk", after ? { ...body, after } : body);
    changed += page.changed;
    skipped += page.skipped;
    after = page.next;
    if (!after) return { changed, skipped };
    ctx.local.progress = `${(changed + skipped).toLocaleString("en")} of ${total.toLocaleString("en")}`;
    ctx.redraw();
  }
}
