// Agents with their skills and claims, and the processes that run them.

import { change, get } from "../api.js";
import { h } from "../dom.js";
import { ask, attempt, badge, button, empty, meter, panel, table } from "../parts.js";
import { count, label, money, when } from "../words.js";

const TONES = { active: "good", draining: "warm", failed: "bad", offline: "plain" };

export default {
  title: "Agents",

  async load() {
    const [agents, runtimes, costs] = await Promise.all([get("/api/agents"), get("/api/runtimes"), get("/api/costs", { by: "agent" })]);
    return { agents: agents.agents, runtimes: runtimes.items, costs: new Map(costs.costs.map((each) => [each.value, each])) };
  },

  view({ agents, runtimes, costs }, ctx) {
    return [h("h1", {}, "Agents"), panel("Agents", { note: `${agents.length} known` }, list(agents, costs, ctx)), panel("Runtimes", { note: `the processes that run agents: ${runtimes.filter((each) => each.status === "active").length} active` }, processes(runtimes))];
  },
};

function list(agents, costs, ctx) {
  const columns = [
    { title: "Agent", cell: (agent) => h("b", {}, agent.id) },
    { title: "State", class: "slim", cell: (agent) => badge(label(agent.status), TONES[agent.status]) },
    { title: "Can do", cell: (agent) => [(agent.types ?? ["anything"]).map((type) => badge(type)), agent.capabilities.map((each) => badge(each, "cool"))] },
    { title: "Holds", cell: (agent) => h("span", { class: "with-meter" }, agent.max_concurrent_tasks ? meter(agent.current_tasks, agent.max_concurrent_tasks, "Slots in use") : null, ` ${agent.current_tasks}${agent.max_concurrent_tasks ? `/${agent.max_concurrent_tasks}` : ""}`) },
    { title: "Attempts", class: "end wide", cell: (agent) => count(costs.get(agent.id)?.attempts ?? 0) },
    { title: "Spent", class: "end", cell: (agent) => [money(agent.spent_usd), agent.budget_remaining_usd === null ? null : h("small", {}, ` ${money(agent.budget_remaining_usd)} left`)] },
    { title: "Last seen", class: "end", cell: (agent) => when(agent.last_heartbeat) },
    { title: "", class: "end", cell: (agent) => actions(agent, ctx) },
  ];
  return table("Agents", columns, agents, { none: empty("There are no agents yet.", "Start one: shiftwork work, or POST /api/tasks/claim"), each: (agent) => ({ key: agent.id }) });
}

function actions(agent, ctx) {
  const set = (status, message) => async () => {
    if (await attempt(message, () => change(`/api/agents/${encodeURIComponent(agent.id)}`, { status }))) await ctx.reload();
  };
  const budget = async () => {
    const filled = await ask(`Remaining budget of ${agent.id}`, { fields: [{ name: "left", label: "US dollars (empty: no limit)", type: "number", min: 0, value: agent.budget_remaining_usd ?? "" }], yes: "Set" });
    if (filled && (await attempt("The budget was set.", () => change(`/api/agents/${encodeURIComponent(agent.id)}`, { budget_remaining_usd: filled.left === "" ? null : Number(filled.left) })))) await ctx.reload();
  };
  return h("span", { class: "row end" }, button("Budget", budget, { tone: "quiet" }), agent.status === "draining" || agent.status === "offline" ? button("Activate", set("active", `${agent.id} gets work again.`), { tone: "quiet" }) : button("Drain", set("draining", `${agent.id} gets no new work.`), { tone: "quiet" }));
}

function processes(runtimes) {
  const columns = [
    { title: "Runtime", cell: (each) => h("code", {}, each.id) },
    { title: "State", cell: (each) => badge(label(each.status), each.status === "active" ? "good" : "plain") },
    { title: "Holds", class: "end", cell: (each) => each.held },
    { title: "Heartbeat", class: "end", cell: (each) => when(each.last_heartbeat) },
    { title: "Seen", class: "end", cell: (each) => when(each.last_seen) },
  ];
  const seen = [...runtimes].sort((a, b) => b.last_seen - a.last_seen);
  return table("Runtimes", columns, seen, { none: empty("There are no runtimes yet."), each: (each) => ({ key: each.id }) });
}
