// A DAG as a graph that follows its progress.

import { get, post } from "../api.js";
import { h } from "../dom.js";
import { draw } from "../graph.js";
import { ask, attempt, button, chip, empty, facts, link, meter, panel, taskLink } from "../parts.js";
import { label, money, percent, when } from "../words.js";

const MOST = 1000;
const ZOOMS = [0.4, 0.55, 0.75, 1, 1.3];
const STATES = ["pending", "ready", "running", "validating", "retrying", "waiting_approval", "completed", "failed", "dead_lettered", "cancelled"];

export default {
  title: "DAG",

  async load({ id }) {
    const path = `/api/dags/${encodeURIComponent(id)}`;
    const [dag, page] = await Promise.all([get(path), get("/api/tasks", { dag: id, limit: MOST })]);
    // Edges name the first task of a lineage; show the latest retry or rerun in its place.
    const newest = new Map(page.tasks.map((task) => [task.root_task_id, task]));
    return { title: dag.title ?? "DAG", dag, tasks: [...newest.values()], cut: page.next !== null };
  },

  view(data, ctx) {
    const { dag, tasks } = data;
    const { local } = ctx;
    const chosen = tasks.find((task) => task.root_task_id === local.chosen);
    return [
      h("p", { class: "crumbs" }, link("/dags", "DAGs"), " / ", h("code", {}, dag.id)),
      h("div", { class: "heading" }, h("h1", {}, dag.title ?? "untitled"), chip(dag.status), h("div", { class: "actions" }, actions(dag, ctx))),
      h("p", { class: "with-meter big" }, meter(dag.done, dag.total, "Done"), ` ${dag.done} of ${dag.total} done (${percent(dag.done, dag.total)} %)`),
      panel("Graph", { note: data.cut ? `the first ${MOST} tasks` : "thick: the critical path", actions: zooming(ctx, tasks) }, picture(tasks, ctx), legend(tasks)),
      h("div", { class: "columns" }, h("div", {}, chosen ? selection(chosen, tasks) : panel("Task", {}, empty("Choose a task in the graph."))), h("div", {}, about(dag))),
    ];
  },
};

function actions(dag, ctx) {
  if (dag.status !== "running" && dag.status !== "open") return [];
  const cancel = async () => {
    const filled = await ask("Cancel the whole DAG?", { text: "All its unfinished tasks are cancelled.", fields: [{ name: "reason", label: "Reason" }], yes: "Cancel the DAG", tone: "danger" });
    if (filled && (await attempt("The DAG is being cancelled.", () => post(`/api/dags/${dag.id}/cancel`, filled.reason ? { reason: filled.reason } : {})))) await ctx.reload();
  };
  return [button("Cancel", cancel, { tone: "danger" })];
}

const FIT = 40; // up to this many tasks fit the width of the page; more are shown smaller and scroll

function zoomOf(local, tasks) {
  return local.zoom ?? (tasks.length > 150 ? 0 : tasks.length > 60 ? 1 : 2);
}

function zooming({ local, redraw }, tasks) {
  const by = (step) => () => {
    local.zoom = Math.min(ZOOMS.length - 1, Math.max(0, zoomOf(local, tasks) + step));
    redraw();
  };
  return h("span", { class: "row" }, button("−", by(-1), { title: "Smaller" }), button("+", by(1), { title: "Larger" }));
}

function picture(tasks, { local, redraw }) {
  const nodes = tasks.map((task) => ({ id: task.root_task_id, title: task.title, type: task.type, status: task.status, agent: task.claim.agent_id, parents: task.dependencies }));
  const choose = (id) => {
    local.chosen = id;
    redraw();
  };
  const svg = draw(nodes, { selected: local.chosen, choose });
  const zoom = ZOOMS[zoomOf(local, tasks)];
  if (local.zoom === undefined && tasks.length <= FIT) {
    svg.setAttribute("class", "graph fit");
    svg.style.setProperty("max-width", `${svg.getAttribute("width")}px`);
  } else {
    svg.setAttribute("width", Math.round(svg.getAttribute("width") * zoom));
    svg.setAttribute("height", Math.round(svg.getAttribute("height") * zoom));
  }
  return h("div", { class: "canvas", tabindex: "0", role: "region", "aria-label": "Graph of the DAG" }, svg);
}

function legend(tasks) {
  const counts = new Map();
  for (const task of tasks) counts.set(task.status, (counts.get(task.status) ?? 0) + 1);
  return h("ul", { class: "legend" }, STATES.filter((state) => counts.has(state)).map((state) => h("li", {}, h("i", { class: `dot is-${state}` }), label(state), " ", h("b", {}, counts.get(state)))));
}

function selection(task, tasks) {
  const inside = new Set(tasks.map((each) => each.root_task_id));
  const outside = task.dependencies.filter((id) => !inside.has(id));
  return panel(
    "Task",
    { actions: taskLink(task.id, "Open") },
    h("p", { class: "strong" }, task.title ?? task.type, " ", chip(task.status)),
    facts([
      ["Type", task.type],
      ["Agent", task.claim.agent_id],
      ["Failed attempts", `${task.attempts} of at most ${task.max_attempts}`],
      ["Cost", money(task.cost_usd)],
      ["Started", task.started_at && when(task.started_at)],
      ["Finished", task.finished_at && when(task.finished_at)],
      ["Last error", task.last_error],
      ["Depends on other DAGs", outside.length ? outside.map((id) => [taskLink(id), " "]) : null],
      ["Continued without", task.failed_dependencies.length ? task.failed_dependencies.map((each) => h("div", {}, taskLink(each.task_id), h("small", {}, ` ${each.reason ?? each.status}${each.error ? `: ${each.error}` : ""}`))) : null],
    ]),
  );
}

function about(dag) {
  return panel(
    "About",
    {},
    facts([
      ["Created by", dag.created_by],
      ["Created", when(dag.created_at)],
      ["Finished", dag.finished_at && when(dag.finished_at)],
      ["Spent", `${money(dag.spent_usd)}${dag.budget_ceiling_usd === null ? "" : ` of ${money(dag.budget_ceiling_usd)}`}`],
    ]),
  );
}
