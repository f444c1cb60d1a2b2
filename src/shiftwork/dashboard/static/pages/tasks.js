// The list of tasks, with filters that are part of the address.

import { get, post } from "../api.js";
import { h } from "../dom.js";
import { askObject } from "../form.js";
import { ask, attempt, badge, button, chip, empty, isScheduled, meter, panel, stateOf, table, taskLink, toast } from "../parts.js";
import { go, query, setFilters, to } from "../route.js";
import { bar, box, boxOfAll } from "./bulk.js";
import { count, money, shortId, when } from "../words.js";

const STATES = ["ready", "pending", "claimed", "running", "validating", "retrying", "waiting_approval", "completed", "failed", "dead_lettered", "cancelled"];
const WORDS = ["type", "agent", "tag", "issue", "dag"];
const PAGE = 50;
const COUNTED_MS = 5000;
const ID = /^(?:(?:task_|…|\.\.\.)\w+|[0-9A-HJKMNP-TV-Z]{6,26}|[0-9a-f]{8}-[0-9a-f-]{27})$/; // ids as they are printed

export default {
  title: "Tasks",

  async load(_params, filters, local) {
    const words = wordsOf(filters);
    const wanted = { ...words, status: filters.status?.split(","), after: filters.after, limit: PAGE, newest: true };
    const [page, status] = await Promise.all([get("/api/tasks", wanted), get("/api/queue")]);
    const counts = Object.keys(words).length ? await counted(words, local) : status.counts;
    return { tasks: page.tasks, next: page.next, lag: page.index_lag, counts, types: Object.keys(status.types).sort() };
  },

  view({ tasks, next, lag, counts, types }, ctx) {
    const filters = query();
    const chosen = new Set((filters.status ?? "").split(",").filter(Boolean));
    const where = { ...wordsOf(filters), ...(filters.status ? { status: filters.status } : {}) };
    return [
      h("div", { class: "heading" }, h("h1", {}, "Tasks"), h("div", { class: "actions" }, button("New task", submit, { tone: "primary" }))),
      words(filters, types),
      h("div", { class: "chips", role: "group", "aria-label": "States" }, STATES.filter((state) => counts[state] || chosen.has(state)).map((state) => stateFilter(state, counts[state] ?? 0, chosen))),
      lag ? h("p", { class: "stale", role: "status" }, `The search index is ${count(lag)} events behind. Some tasks may be missing.`) : null,
      bar(tasks, where, next || filters.after, ctx),
      panel("Newest first", { note: ctx.local.progress ?? `${tasks.length} shown` }, list(tasks, filters, ctx), pages(filters, next)),
    ];
  },
};

function wordsOf(filters) {
  return Object.fromEntries(["search", ...WORDS].filter((name) => filters[name]).map((name) => [name, filters[name]]));
}

// Counting reads all matching tasks, so it is not repeated for every event.
async function counted(words, local) {
  const key = JSON.stringify(words);
  if (local.counted?.key !== key || Date.now() - local.counted.at > COUNTED_MS) {
    local.counted = { key, at: Date.now(), counts: (await get("/api/counts", words)).counts };
  }
  return local.counted.counts;
}

// Submit a task in the name of a person, who is recorded in `created_by`.
async function submit() {
  const fields = [
    { name: "type", label: "Type", required: true, hint: "decides which agents take it: code, research, review …" },
    { name: "title", label: "Title", required: true },
    { name: "prompt", label: "Prompt", long: true },
    { name: "priority", label: "Priority", type: "number", min: 0, max: 100, hint: "0 is the most urgent, 100 the least. Empty: the default." },
    { name: "person", label: "Your name" },
  ];
  const filled = await ask("New task", { fields, yes: "Submit" });
  if (!filled) return;
  const task = { type: filled.type, title: filled.title, created_by: `human:${filled.person || "dashboard"}` };
  if (filled.prompt) task.spec = { prompt: filled.prompt };
  if (filled.priority) task.priority = Number(filled.priority);
  const { types } = await get("/api/types");
  const schema = types.find((each) => each.name === filled.type)?.payload_schema;
  if (schema?.properties && Object.keys(schema.properties).length) {
    task.payload = await askObject(`Payload of ${filled.type}`, schema, "Submit");
    if (task.payload === null) return;
  }
  await attempt("The task was submitted.", async () => go(to(`/tasks/${(await post("/api/tasks", task)).id}`)));
}

function stateFilter(state, total, chosen) {
  const toggle = () => {
    const next = new Set(chosen);
    if (!next.delete(state)) next.add(state);
    setFilters({ status: [...next].join(","), after: null });
  };
  return h("button", { type: "button", class: "filter", "aria-pressed": String(chosen.has(state)), onclick: toggle, "data-key": state }, chip(state), ` ${count(total)}`);
}

function words(filters, types) {
  const narrow = (event) => {
    event.preventDefault();
    const { elements } = event.target.closest("form");
    const search = elements.search.value.trim();
    const narrowed = { after: null, search, ...Object.fromEntries(WORDS.map((name) => [name, elements[name].value.trim()])) };
    if (event.type === "submit" && ID.test(search)) return openOr(search, narrowed);
    setFilters(narrowed);
  };
  return h(
    "form",
    { class: "filters", onsubmit: narrow, onchange: narrow, role: "search" },
    h("label", { class: "find" }, "Search", h("input", { name: "search", type: "search", "data-find": true, maxlength: 500, placeholder: "title, payload, tags, errors, or an id", autocomplete: "off", value: filters.search ?? "" })),
    h("label", {}, "Type", h("input", { name: "type", list: "types", value: filters.type ?? "" })),
    h("datalist", { id: "types" }, types.map((type) => h("option", { value: type }))),
    ["agent", "tag", "issue", "dag"].map((name) => h("label", {}, name === "dag" ? "DAG" : name[0].toUpperCase() + name.slice(1), h("input", { name, value: filters[name] ?? "" }))),
    h("button", { class: "hidden" }, "Find"),
    [...WORDS, "search", "status", "after"].some((name) => filters[name]) ? button("Clear", () => go(to("/tasks")), { tone: "quiet" }) : null,
  );
}

// Text that may be an id, in any form that the queue accepts, opens its task; if there is none, it is a search term.
async function openOr(id, filters) {
  try {
    const task = await get(`/api/tasks/${encodeURIComponent(id)}`);
    go(to(`/tasks/${task.id}`));
  } catch (error) {
    if (error.code === "ambiguous_id") toast([h("b", {}, error.message), ` ${error.hint}`], "bad");
    setFilters(filters);
  }
}

function list(tasks, filters, ctx) {
  const columns = [
    { title: "", head: boxOfAll(tasks, ctx), class: "slim", cell: (task) => box(task, ctx) },
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
  return table("Tasks", columns, tasks, { none: nothing(filters), each: (task) => ({ key: task.id, href: `/tasks/${task.id}` }) });
}

function nothing(filters) {
  if (filters.search) return empty(`No task matches “${filters.search}”.`, "Check the spelling, use fewer words, or clear the other filters.");
  return Object.keys(filters).length ? empty("No task matches these filters.", "Clear some of them.") : empty("There are no tasks yet.", "Submit one: shiftwork submit TYPE");
}

function pages(filters, next) {
  return h("div", { class: "row end" }, filters.after ? button("Newest", () => setFilters({ after: null })) : null, next ? button("Older", () => setFilters({ after: next })) : null);
}
