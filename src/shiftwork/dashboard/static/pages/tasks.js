// All tasks through filters that live in the address.

import { get, post } from "../api.js";
import { h } from "../dom.js";
import { ask, attempt, badge, button, chip, empty, isScheduled, meter, panel, stateOf, table, taskLink, toast } from "../parts.js";
import { go, query, setFilters, to } from "../route.js";
import { count, money, shortId, when } from "../words.js";

const STATES = ["ready", "pending", "claimed", "running", "validating", "retrying", "waiting_approval", "completed", "failed", "dead_lettered", "cancelled"];
const WORDS = ["type", "agent", "tag", "issue", "dag"];
const PAGE = 50;

export default {
  title: "Tasks",

  async load(_params, filters) {
    const wanted = { status: filters.status?.split(","), after: filters.after, limit: PAGE, newest: true };
    for (const name of WORDS) wanted[name] = filters[name];
    const [page, status] = await Promise.all([get("/api/tasks", wanted), get("/api/queue")]);
    return { tasks: page.tasks, next: page.next, counts: status.counts, types: Object.keys(status.types).sort() };
  },

  view({ tasks, next, counts, types }) {
    const filters = query();
    const chosen = new Set((filters.status ?? "").split(",").filter(Boolean));
    return [
      h("div", { class: "heading" }, h("h1", {}, "Tasks"), h("div", { class: "actions" }, button("New task", submit, { tone: "primary" }))),
      h("div", { class: "chips", role: "group", "aria-label": "States" }, STATES.filter((state) => counts[state] || chosen.has(state)).map((state) => stateFilter(state, WORDS.some((name) => filters[name]) ? null : (counts[state] ?? 0), chosen))),
      words(filters, types),
      panel("Newest first", { note: `${tasks.length} shown` }, list(tasks, filters), pages(filters, next)),
    ];
  },
};

// What a person wants done; who that is stands in `created_by`.
async function submit() {
  const fields = [
    { name: "type", label: "Type", required: true, hint: "which agents take it: code, research, review …" },
    { name: "title", label: "Title", required: true },
    { name: "prompt", label: "What is to be done", long: true },
    { name: "priority", label: "Priority", type: "number", min: 0, max: 100, hint: "0 is the most urgent, 100 the least; as everywhere else if empty" },
    { name: "person", label: "Your name" },
  ];
  const filled = await ask("New task", { fields, yes: "Submit" });
  if (!filled) return;
  const task = { type: filled.type, title: filled.title, created_by: `human:${filled.person || "dashboard"}` };
  if (filled.prompt) task.spec = { prompt: filled.prompt };
  if (filled.priority) task.priority = Number(filled.priority);
  await attempt("It was submitted.", async () => go(to(`/tasks/${(await post("/api/tasks", task)).id}`)));
}

function stateFilter(state, total, chosen) {
  const toggle = () => {
    const next = new Set(chosen);
    if (!next.delete(state)) next.add(state);
    setFilters({ status: [...next].join(","), after: null });
  };
  return h("button", { type: "button", class: "filter", "aria-pressed": String(chosen.has(state)), onclick: toggle, "data-key": state }, chip(state), total === null ? null : ` ${count(total)}`);
}

function words(filters, types) {
  const narrow = (event) => {
    if (event.type === "change" && event.target.name === "find") return; // Enter submits
    event.preventDefault();
    const form = event.target.closest("form");
    const found = form.elements.find.value.trim();
    if (found) return find(found);
    setFilters({ after: null, ...Object.fromEntries(WORDS.map((name) => [name, form.elements[name].value.trim()])) });
  };
  return h(
    "form",
    { class: "filters", onsubmit: narrow, onchange: narrow, role: "search" },
    h("label", {}, "Id", h("input", { name: "find", "data-find": true, placeholder: "task_… and Enter", autocomplete: "off" })),
    h("label", {}, "Type", h("input", { name: "type", list: "types", value: filters.type ?? "" })),
    h("datalist", { id: "types" }, types.map((type) => h("option", { value: type }))),
    ["agent", "tag", "issue", "dag"].map((name) => h("label", {}, name === "dag" ? "DAG" : name[0].toUpperCase() + name.slice(1), h("input", { name, value: filters[name] ?? "" }))),
    h("button", { class: "hidden" }, "Find"),
    [...WORDS, "status", "after"].some((name) => filters[name]) ? button("Clear", () => go(to("/tasks")), { tone: "quiet" }) : null,
  );
}

// By the id, in any form that the queue takes.
async function find(id) {
  try {
    const task = await get(`/api/tasks/${encodeURIComponent(id)}`);
    go(to(`/tasks/${task.id}`));
  } catch (error) {
    toast([h("b", {}, error.status === 404 ? `No task has the id ${id}.` : error.message), " To find tasks by type, agent, tag, issue or DAG, use the other fields."], "bad");
  }
}

function list(tasks, filters) {
  const columns = [
    { title: "State", class: "slim", cell: (task) => [stateOf(task), isScheduled(task) ? h("small", {}, " ", when(task.run_at)) : null] },
    { title: "Task", cell: (task) => [taskLink(task.id, task.title ?? h("i", {}, "untitled")), h("small", {}, ` ${task.type}`), task.tags.map((tag) => badge(tag))] },
    { title: "Id", class: "wide", cell: (task) => h("code", { title: task.id }, shortId(task.id)) },
    { title: "Priority", cell: (task) => h("span", { class: `tier tier-${task.priority_tier}` }, `${task.priority_tier} · ${Math.round(task.effective_priority)}`) },
    { title: "Agent", cell: (task) => task.claim.agent_id ?? task.target_agent_id ?? "–" },
    { title: "Progress", class: "slim wide", cell: (task) => (task.status === "running" && task.progress?.pct !== undefined ? meter(task.progress.pct, 100, "Done") : "") },
    { title: "Attempts", class: "end wide", cell: (task) => `${task.attempts}/${task.max_attempts}` },
    { title: "Cost", class: "end wide", cell: (task) => money(task.cost_usd) },
    { title: "Created", class: "end", cell: (task) => when(task.created_at) },
  ];
  const none = Object.keys(filters).length ? empty("No task fits these filters.", "Clear some of them.") : empty("There are no tasks yet.", "Submit one: shiftwork submit TYPE");
  return table("Tasks", columns, tasks, { none, each: (task) => ({ key: task.id, href: `/tasks/${task.id}` }) });
}

function pages(filters, next) {
  return h("div", { class: "row end" }, filters.after ? button("Newest", () => setFilters({ after: null })) : null, next ? button("Older", () => setFilters({ after: next })) : null);
}
