// The state of the queue at a glance: what waits, what runs, what it costs, and what needs a person.

import { get, tryGet, waitingForPeople } from "../api.js";
import { h } from "../dom.js";
import { chip, empty, link, meter, panel, parted, sparkline, table, taskLink } from "../parts.js";
import { count, label, money, now, percent, plural, sentence, shortId, span, when } from "../words.js";

const TIERS = ["critical", "high", "normal", "low", "background"];
const HELD = ["running", "claimed", "validating"];
const FEED = 12;
const SHOWN = 60; // points of the throughput chart
const QUIET = new Set(["in_line", "capacity", "dependency", "retry", "time", "scheduled", "serial"]); // resolve themselves

export default {
  title: "Overview",

  async load(_params, _filters, local) {
    local.feed ??= await lately();
    const [status, agents, running, budgets, costs, alerts, metrics, history, blocked] = await Promise.all([
      get("/api/queue"),
      get("/api/agents"),
      get("/api/tasks", { status: HELD, limit: 8 }),
      get("/api/budgets", { kind: "day" }),
      get("/api/costs", { by: "type", limit: 5 }),
      get("/api/alerts", { open_only: true, limit: 1000 }),
      tryGet("/api/metrics"),
      tryGet("/api/metrics/snapshots", { limit: SHOWN }),
      tryGet("/api/queue/blocked"),
    ]);
    const asked = await waitingForPeople();
    return { status, agents: agents.agents, running: running.tasks, day: budgets.budgets[0], costs, alerts: alerts.alerts, metrics, history, asked, causes: blocked?.causes ?? [] };
  },

  // Add live events to the feed without a request.
  events(events, local) {
    local.feed = [...events.filter(worthTelling).reverse(), ...(local.feed ?? [])].slice(0, FEED);
  },

  view(data, ctx) {
    return [
      h("h1", {}, "Overview"),
      tiles(data),
      h("div", { class: "columns" }, h("div", {}, runningNow(data), waiting(data), failures(data)), h("div", {}, attention(data), activity(ctx.local.feed ?? []))),
    ];
  },
};

function worthTelling(event) {
  return event.verb !== "heartbeat" && event.verb !== "progress";
}

// The most recent events before the page was opened.
async function lately() {
  const { next } = await get("/api/events", { after: "now", limit: 1 });
  const { events } = await get("/api/events", { after: Math.max(0, next - 5 * FEED), limit: 5 * FEED });
  return events.filter(worthTelling).reverse().slice(0, FEED);
}

function tiles({ status, agents, day, costs, metrics, history }) {
  const counts = status.counts;
  const waiting = (counts.ready ?? 0) + (counts.pending ?? 0) + (counts.retrying ?? 0);
  const running = HELD.reduce((sum, status) => sum + (counts[status] ?? 0), 0);
  const spent = day?.spent_usd ?? costs.daily_spend_usd;
  return h(
    "div",
    { class: "tiles" },
    tile("Waiting", count(waiting), link("/tasks", parted("Waiting by tier", TIERS.map((tier) => ({ name: label(tier), value: status.tiers[tier] ?? 0, tone: `tier-${tier}` })))), status.scheduled ? h("p", {}, `${count(status.scheduled)} scheduled, the next `, when(status.next_scheduled_at)) : null),
    tile("Running", count(running), h("p", {}, `${plural(status.slots.free, "free slot")} of ${status.slots.total}`), meter(status.slots.total - status.slots.free, status.slots.total, "Slots in use")),
    tile("Completed per minute", status.completed_per_minute.toFixed(1), sparkline(throughput(history), "Completed tasks over time"), h("p", {}, `${count(status.completions)} in all`)),
    tile("Wait for an agent", waitOf(quantile(metrics, "p50") || average(status)), waits(metrics)),
    tile("Agents", count(agents.filter((agent) => agent.status === "active").length), h("p", {}, `${agents.filter((agent) => agent.current_tasks).length} busy, ${agents.filter((agent) => agent.status === "failed").length} silent`), meter(agents.filter((agent) => agent.current_tasks).length, agents.length, "Busy agents")),
    tile("Spent today", money(spent), day?.ceiling_usd ? [h("p", {}, `of ${money(day.ceiling_usd)}, ${money(day.granted_usd)} granted`), meter(spent, day.ceiling_usd, "Of today's budget", percent(spent, day.ceiling_usd) > 80 ? "warm" : "")] : h("p", {}, "no limit")),
  );
}

function tile(name, value, ...below) {
  return h("div", { class: "tile", "data-key": name }, h("h2", {}, name), h("p", { class: "figure" }, value), ...below);
}

// -- figures from the metrics -------------------------------------------------------------------------------------

const COMPLETED = "tasks_completed_total";
const WAIT = "task_queue_wait_seconds";

function throughput(history) {
  const points = [...(history?.snapshots ?? [])].reverse().map((each) => ({ at: each.calculated_at, total: total(each.samples, COMPLETED) }));
  return points.slice(1).map((point, place) => (60 * Math.max(0, point.total - points[place].total)) / Math.max(1, point.at - points[place].at));
}

function total(samples, name) {
  return samples.filter((sample) => sample.name === name).reduce((sum, sample) => sum + sample.value, 0);
}

function quantile(metrics, name) {
  return metrics?.samples.find((sample) => sample.name === WAIT && sample.labels.quantile === name)?.value ?? null;
}

function waits(metrics) {
  const shown = ["p50", "p95", "p99"].map((name) => [name, quantile(metrics, name)]);
  if (shown.every(([, value]) => value === null)) return h("p", {}, "average of the last five minutes");
  return h("ul", { class: "legend" }, shown.map(([name, value]) => h("li", {}, name, " ", h("b", {}, value === null ? "–" : span(value)))));
}

function average(status) {
  const known = Object.values(status.average_wait_sec).filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function waitOf(seconds) {
  return seconds === null ? "–" : span(seconds);
}

// -- lists --------------------------------------------------------------------------------------------------------

function runningNow({ running, causes }) {
  const columns = [
    { title: "Task", cell: (task) => taskLink(task.id, task.title ?? task.type) },
    { title: "Agent", cell: (task) => task.claim.agent_id },
    { title: "State", class: "slim wide", cell: (task) => chip(task.status) },
    { title: "Progress", class: "slim", cell: (task) => (task.progress?.pct === undefined ? "–" : meter(task.progress.pct, 100, "Done")) },
    { title: "Since", class: "end", cell: (task) => span(now() - (task.started_at ?? task.claimed_at)) },
  ];
  const none = empty(causes.length ? "Work waits, but nothing is running." : "Nothing is running.", causes.length ? null : "No task is ready.");
  return panel("Running now", { actions: link(`/tasks?status=${HELD.join(",")}`, "All") }, table("Running tasks", columns, running, { none, each: (task) => ({ key: task.id, href: `/tasks/${task.id}` }) }));
}

// The queue's explanation of all waiting tasks, the most frequent causes first.
function waiting({ causes }) {
  if (!causes.length) return null;
  const items = causes.map((cause) => h("li", { class: QUIET.has(cause.kind) ? "" : "warm", "data-key": `cause-${cause.kind}-${cause.what}` }, h("span", {}, h("b", {}, plural(cause.tasks, "task")), `: ${cause.what}. `, h("small", {}, `${sentence(cause.lifts)}. `, typesOf(cause))), cause.until ? when(cause.until) : null));
  return panel("Why work waits", { actions: link("/tasks?status=ready,pending,retrying,waiting_approval", "All") }, h("ul", { class: "feed" }, items));
}

function typesOf({ types }) {
  const shown = types.filter(Boolean).slice(0, 3);
  return shown.map((type, place) => [place ? ", " : "", link(`/tasks?type=${encodeURIComponent(type)}`, type)]).concat(types.length > shown.length ? [" …"] : []);
}

function failures({ status }) {
  const columns = [
    { title: "Task", cell: (failure) => taskLink(failure.task_id, failure.type ?? shortId(failure.task_id)) },
    { title: "Why", cell: (failure) => h("span", { class: "cut", title: failure.error }, failure.error ?? failure.reason) },
    { title: "Agent", cell: (failure) => failure.agent_id ?? "–" },
    { title: "When", class: "end", cell: (failure) => when(failure.at) },
  ];
  return panel("Recent failures", {}, table("Recent failures", columns, status.recent_failures.slice(0, 6), { none: empty("No recent failures."), each: (failure) => ({ key: `${failure.task_id}${failure.at}`, href: `/tasks/${failure.task_id}` }) }));
}

function attention({ status, alerts, asked }) {
  const counts = status.counts;
  const asks = [
    asked && ["/approvals", plural(asked, "task waits", "tasks wait"), " for a person", "warm"],
    counts.dead_lettered && ["/dead-letters", plural(counts.dead_lettered, "dead letter"), " to review", "bad"],
    status.paused.length && ["/protection", "Paused", `: ${status.paused.join(", ")}`, "warm"],
    ...status.capacity_warnings.map((warning) => ["/protection", "Capacity", `: ${warning}`, "warm"]),
  ].filter(Boolean);
  const newest = kinds(alerts).slice(0, 6);
  const items = [
    ...asks.map(([path, what, more, tone]) => h("li", { class: tone }, link(path, h("b", {}, what), more))),
    ...newest.map(({ alert, more }) => h("li", { class: alert.severity === "critical" ? "bad" : "warm", "data-key": `alert-${alert.kind}` }, h("span", {}, alert.task_id ? taskLink(alert.task_id, alert.message.replace(alert.task_id, shortId(alert.task_id))) : alert.message, more ? h("small", {}, ` and ${count(more)} more`) : null), when(alert.at))),
  ];
  return panel("Needs attention", { actions: link("/alerts", "All alerts") }, items.length ? h("ul", { class: "feed" }, items) : empty("Nothing needs attention."));
}

// The newest of each kind, and how many more there are of it.
function kinds(alerts) {
  const found = new Map();
  for (const alert of alerts) found.set(alert.kind, { alert, more: (found.get(alert.kind)?.more ?? -1) + 1 });
  return [...found.values()].sort((a, b) => b.alert.at - a.alert.at);
}

function activity(feed) {
  const items = feed.map((event) =>
    h("li", { "data-key": `event-${event.seq}` }, event.path.length ? chip(event.path.at(-1)) : h("span", { class: "chip" }, label(event.verb)), h("span", {}, event.task_id ? taskLink(event.task_id, event.type ?? undefined) : (event.data?.agent ?? ""), h("small", {}, ` ${event.actor}`)), when(event.at)),
  );
  return panel("Activity", { note: "live" }, items.length ? h("ul", { class: "feed" }, items) : empty("No events yet.", "New events appear here."));
}
