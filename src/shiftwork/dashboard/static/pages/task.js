// One task: why it waits or how it ended, its attempts on a time axis, and its actions.

import { change, get, post, save, tryGet } from "../api.js";
import { h } from "../dom.js";
import { ask, attempt, badge, button, chip, empty, facts, isScheduled, json, link, meter, panel, stateOf, table, taskLink } from "../parts.js";
import { count, label, money, now, sentence, shortId, span, when } from "../words.js";
import { DECISIONS, decide } from "./letters.js";

const ENDED = new Set(["completed", "cancelled", "failed", "dead_lettered"]);
const SHOWN_LINES = 300;
const LOG_PAGES = 10;
const SETTLED = new Set(["failed", "dead_lettered"]);
const HEARD = {
  waiting: { tone: "pending", title: "It is delivered with the agent's next heartbeat." },
  delivered: { tone: "claimed", title: "It was delivered to an agent, which has not acknowledged it." },
  acknowledged: { tone: "completed", title: "An agent has acknowledged it." },
  unread: { tone: "failed", title: "The task ended before an agent acknowledged it." },
};
const CHANGEABLE = new Set(["ready", "pending", "retrying", "waiting_approval"]);

export default {
  title: "Task",

  async load({ id }) {
    const path = `/api/tasks/${encodeURIComponent(id)}`;
    const [task, history, explained, steps, artifacts, children, asked, logs, instructions] = await Promise.all([
      get(path),
      get(`${path}/history`),
      get(`${path}/explain`),
      get(`${path}/steps`),
      tryGet(`${path}/artifacts`),
      get("/api/tasks", { parent: id, limit: 50 }),
      get("/api/approvals", { task: id }),
      logLines(path),
      tryGet(`${path}/instructions`, { limit: 1000 }),
    ]);
    return { title: task.title ?? task.type, task, history, explained, steps: steps.steps, artifacts: artifacts?.artifacts ?? [], children: children.tasks, asked: asked.approvals, lines: logs, instructions: instructions?.instructions ?? [] };
  },

  view(data, ctx) {
    const { task } = data;
    return [
      h("p", { class: "crumbs" }, link("/tasks", "Tasks"), " / ", h("code", {}, task.id)),
      h("div", { class: "heading" }, h("h1", {}, task.title ?? task.type), stateOf(task), h("div", { class: "actions" }, actions(data, ctx))),
      why(data),
      h("div", { class: "columns" }, h("div", {}, timeline(data), instructionsOf(data, ctx), logOf(data), stepsOf(data), output(data), input(data)), h("div", {}, about(data), family(data), files(data), story(data))),
    ];
  },
};

// -- actions -----------------------------------------------------------------------------------------------------

function againFields(task, steps) {
  const finished = steps.filter((step) => step.status === "done").map((step) => step.name);
  const fields = [
    { name: "payload", label: "Payload", long: true, value: JSON.stringify(task.payload, null, 2) },
    { name: "model", label: "Model", hint: "Empty: as before." },
  ];
  if (finished.length) fields.push({ name: "from_step", label: "From step", hint: `Empty: from the start. Steps before it are kept: ${finished.join(", ")}.` });
  if (task.dag_id.slice(4) !== task.id.slice(5) || task.dependencies.length) fields.push({ name: "downstream", label: "With everything that depends on it", type: "checkbox", value: "yes" });
  return fields;
}

function againOf(filled, task) {
  const again = {};
  const payload = JSON.parse(filled.payload || "{}");
  if (JSON.stringify(payload) !== JSON.stringify(task.payload)) again.payload = payload;
  if (filled.model) again.model = filled.model;
  if (filled.from_step) again.from_step = filled.from_step;
  if (filled.downstream) again.downstream = true;
  return again;
}

function actions({ task, asked, steps }, ctx) {
  const path = `/api/tasks/${task.id}`;
  const done = async (what, action) => {
    if (await attempt(what, action)) await ctx.reload();
  };
  const found = [];
  if (asked.length) found.push(link("/approvals", h("span", { class: "button primary" }, asked[0].kind === "question" ? "Answer" : "Decide")));
  if (SETTLED.has(task.status)) {
    const letter = { task_id: task.id, payload: task.payload };
    found.push(...DECISIONS.map(([decision, name, hint]) => button(name, () => decide(letter, decision, name, hint, ctx), { tone: { retry: "primary", cancel: "danger" }[decision] ?? "" })));
  }
  if (CHANGEABLE.has(task.status)) {
    found.push(
      button("Priority", async () => {
        const filled = await ask("Priority", { text: "0 is the most urgent, 100 the least.", fields: [{ name: "priority", label: "Priority", type: "number", value: task.priority, min: 0, max: 100, required: true }], yes: "Change" });
        if (filled) await done("The priority was changed.", () => change(path, { priority: Number(filled.priority) }));
      }),
    );
  }
  if (!ENDED.has(task.status)) {
    found.push(
      button(
        "Cancel",
        async () => {
          const filled = await ask("Cancel this task?", { text: "Its agent is asked to stop, and its dependents are cancelled.", fields: [{ name: "reason", label: "Reason" }], yes: "Cancel the task", tone: "danger" });
          if (filled) await done("The task is being cancelled.", () => post(`${path}/cancel`, filled.reason ? { reason: filled.reason } : {}));
        },
        { tone: "danger" },
      ),
    );
  } else {
    found.push(
      button("Run again", async () => {
        const filled = await ask("Run it again?", { text: "Creates a new task from this one. This one stays as it is.", fields: againFields(task, steps), yes: "Run again" });
        if (filled) await done("A new run was submitted.", () => post(`${path}/rerun`, againOf(filled, task)));
      }),
    );
  }
  return found;
}

// -- why ----------------------------------------------------------------------------------------------------------

function why({ task, explained }) {
  if (task.status === "completed" || task.status === "running") return null;
  const holds = explained.holds.map((hold) => h("li", {}, h("b", {}, sentence(hold.what)), hold.lifts && h("span", {}, ` – ${hold.lifts}`), hold.until && h("span", {}, " ", when(hold.until)), hold.tasks.length ? h("span", {}, " ", hold.tasks.map((id) => [taskLink(id), " "])) : null));
  return h("div", { class: "why", "data-key": "why" }, holds.length ? h("ul", {}, holds) : h("p", { class: "strong" }, sentence(explained.summary)), task.last_error && h("p", { class: "error" }, h("b", {}, "Last error: "), task.last_error));
}

// -- attempts -----------------------------------------------------------------------------------------------------

function timeline({ task, history }) {
  const live = task.claim.claimed_at ? [{ fence: task.fence, agent_id: task.claim.agent_id, claimed_at: task.claim.claimed_at, ended_at: null, outcome: "running", cost_usd: null }] : [];
  const attempts = [...history.attempts, ...live];
  if (!attempts.length) return panel("Attempts", {}, empty("No agent has worked on it yet."));
  const begin = task.created_at;
  const end = Math.max(...attempts.map((each) => each.ended_at ?? now()));
  const whole = Math.max(1, end - begin);
  const share = (at) => `${((100 * (at - begin)) / whole).toFixed(2)}%`;
  const rows = attempts.map((each, place) => {
    const until = each.ended_at ?? now();
    const summary = `${each.agent_id}: ${each.outcome} after ${span(until - each.claimed_at)}`;
    return h(
      "li",
      { "data-key": `attempt-${each.fence}` },
      h("span", { class: "who" }, h("b", {}, place + 1), ` ${each.agent_id}`),
      h("span", { class: "lane" }, h("span", { class: `stay is-${tone(each.outcome)}`, style: { left: share(each.claimed_at), width: `max(3px, ${((100 * (until - each.claimed_at)) / whole).toFixed(2)}%)` }, title: summary })),
      h("span", { class: "outcome" }, label(each.outcome), each.reason ? ` · ${each.reason}` : "", h("small", {}, ` ${span(until - each.claimed_at)}${each.cost_usd ? ` · ${money(each.cost_usd)}` : ""}`)),
      each.error ? h("p", { class: "error" }, each.error) : null,
    );
  });
  return panel("Attempts", { note: `${span(whole)} since its creation` }, h("ol", { class: "timeline" }, rows));
}

function tone(outcome) {
  return { completed: "completed", failed: "failed", running: "running", released: "pending", reclaimed: "retrying" }[outcome] ?? "pending";
}

// Instructions to its agent with their delivery state, and a form for new ones while an agent can still receive them.
function instructionsOf({ task, instructions }, ctx) {
  const open = !ENDED.has(task.status) || SETTLED.has(task.status);
  if (!open && !instructions.length) return null;
  const items = instructions.map((each) =>
    h(
      "li",
      { "data-key": `instruction-${each.seq}` },
      h("span", { class: `chip is-${HEARD[each.status].tone}`, title: HEARD[each.status].title }, each.status),
      h("span", { class: "prose" }, each.text, h("small", {}, ` ${each.sent_by}${each.fence ? ` · attempt ${each.fence}` : ""}`)),
      when(each.acknowledged_at ?? each.delivered_at ?? each.sent_at),
    ),
  );
  const send = async (event) => {
    event.preventDefault();
    const form = event.target;
    const text = form.elements.text.value.trim();
    if (text && (await attempt("The instruction was sent.", () => post(`/api/tasks/${task.id}/instructions`, { text })))) {
      form.reset();
      await ctx.reload();
    }
  };
  const box = h(
    "form",
    { class: "tell", "data-key": "tell", onsubmit: send },
    h("textarea", { name: "text", rows: 2, maxlength: 10000, required: true, "aria-label": "Instruction", placeholder: task.claim.agent_id ? `Instruction to ${task.claim.agent_id}` : "Instruction to the agent that claims it next" }),
    h("button", { class: "primary" }, "Send"),
  );
  return panel("Instructions", { note: "delivered with the agent's next heartbeat" }, items.length ? h("ul", { class: "feed" }, items) : null, open ? box : null);
}

async function logLines(path) {
  const lines = [];
  for (let after = 0, pages = 0; pages < LOG_PAGES; pages += 1) {
    const page = await tryGet(`${path}/logs`, { after });
    if (!page?.lines.length) break;
    lines.push(...page.lines);
    after = page.next;
  }
  return lines;
}

// The log lines of its handler and the messages of its agent, oldest first; of a long log, the newest.
function logOf({ lines }) {
  if (!lines.length) return null;
  const shown = lines.slice(-SHOWN_LINES);
  const items = shown.map((line, place) => [
    shown[place - 1]?.fence === line.fence ? null : h("li", { class: "attempt", "data-key": `log-attempt-${line.fence}` }, `attempt ${line.fence} by ${line.agent_id}`),
    h("li", { class: `level-${line.level}`, "data-key": `log-${line.seq}-${place}` }, h("time", {}, clockTime(line.at)), line.kind === "tool_call" ? h("code", {}, line.text) : h("span", {}, line.text)),
  ]);
  const note = lines.length > shown.length ? `the last ${count(shown.length)} lines` : "as reported by its agent";
  return panel("Log", { note }, h("ol", { class: "log", tabindex: 0 }, items));
}

function clockTime(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour12: false });
}

function stepsOf({ steps }) {
  if (!steps.length) return null;
  const columns = [
    { title: "Step", cell: (step) => h("b", {}, step.name) },
    { title: "State", cell: (step) => label(step.status) },
    { title: "Result", cell: (step) => (step.result === null ? "–" : h("details", {}, h("summary", {}, "show"), json(step.result))) },
    { title: "Cost", class: "end", cell: (step) => money(step.cost_usd) },
    { title: "Done", class: "end", cell: (step) => when(step.done_at) },
  ];
  return panel("Steps", { note: "finished steps survive crashes" }, table("Steps", columns, steps, { each: (step) => ({ key: step.name }) }));
}

function output({ task }) {
  if (task.result === null || task.result === undefined) return null;
  const { result } = task;
  return panel("Output", { note: result.status ? label(result.status) : task.status === "validating" ? "awaiting validation" : "of an attempt that was not accepted" }, result.text && h("p", { class: "prose" }, result.text), result.data !== null && json(result.data), result.error && h("p", { class: "error" }, result.error));
}

function input({ task }) {
  return panel("Input", {}, json(task.payload), task.spec && h("details", {}, h("summary", {}, "Specification"), json(task.spec)));
}

// -- side column ---------------------------------------------------------------------------------------------------

function about({ task }) {
  return panel(
    "About",
    {},
    task.status === "running" && task.progress?.pct !== undefined ? h("p", {}, meter(task.progress.pct, 100, "Done"), ` ${task.progress.pct} % ${task.progress.message ?? ""}`) : null,
    facts([
      ["Type", task.type],
      ["Agent", task.claim.agent_id],
      ["Priority", `${task.priority_tier} · ${task.effective_priority.toFixed(1)} (set to ${task.priority})`],
      ["Created", [when(task.created_at), task.created_by ? ` by ${task.created_by}` : ""]],
      ["Started", task.started_at && when(task.started_at)],
      ["Finished", task.finished_at && when(task.finished_at)],
      ["Next attempt", task.available_at && when(task.available_at)],
      [isScheduled(task) ? "Starts" : "Was scheduled for", task.run_at && when(task.run_at)],
      ["Expires", task.expires_at && when(task.expires_at)],
      ["Deadline", task.deadline && when(task.deadline)],
      ["Failed attempts", `${task.attempts} of at most ${task.max_attempts}`],
      ["Cost", `${money(task.cost_usd)} · ${count(task.tokens_used.input)} tokens in, ${count(task.tokens_used.output)} out`],
      ["Issue", task.issue_id],
      ["Session", task.session_id && h("code", {}, task.session_id)],
      ["Tags", task.tags.length ? task.tags.map((tag) => badge(tag)) : null],
      ["Workspace", task.workspace_id],
    ]),
  );
}

function family({ task, children }) {
  const lone = !task.dependencies.length && !children.length && !task.parent_id && !task.rerun_of && !task.retry_of && !task.superseded_by;
  const own = task.dag_id.slice(4) === task.id.slice(5);
  if (lone && own) return null;
  return panel(
    "Relations",
    {},
    facts([
      ["DAG", own ? null : link(`/dags/${task.dag_id}`, h("code", {}, shortId(task.dag_id)))],
      ["Depends on", task.dependencies.length ? task.dependencies.map((id) => [taskLink(id), task.blocked_by.includes(id) ? " (open) " : " "]) : null],
      ["Continued without", task.failed_dependencies.length ? task.failed_dependencies.map((each) => h("div", {}, taskLink(each.task_id), " ", chip(each.status), h("small", {}, ` ${each.reason ?? ""}${each.error ? `: ${each.error}` : ""}`))) : null],
      ["Parent", task.parent_id && taskLink(task.parent_id)],
      ["Spawned", children.length ? children.map((child) => h("div", {}, taskLink(child.id, child.title ?? child.type), " ", chip(child.status))) : null],
      ["Retry of", task.retry_of && taskLink(task.retry_of)],
      ["Rerun of", task.rerun_of && taskLink(task.rerun_of)],
      ["Superseded by", task.superseded_by && taskLink(task.superseded_by)],
    ]),
  );
}

function files({ artifacts }) {
  if (!artifacts.length) return null;
  const items = artifacts.map((each) =>
    h("li", { "data-key": `${each.id}-${each.role}` }, h("span", {}, each.name ?? h("code", { title: each.id }, shortId(each.id)), h("small", {}, ` ${each.role} · ${each.media_type} · ${count(each.size)} bytes`)), button("Save", () => attempt("Saved.", () => save(each)), { tone: "quiet" })),
  );
  return panel("Artifacts", {}, h("ul", { class: "feed" }, items));
}

function story({ history }) {
  const items = [...history.events].reverse().slice(0, 60).map((event) =>
    h(
      "li",
      { "data-key": `event-${event.seq}` },
      event.path.length ? chip(event.path.at(-1)) : h("span", { class: "chip" }, label(event.verb.startsWith("instruction_") ? "instruction" : event.verb)),
      h("span", {}, event.verb === "message" ? h("span", { class: "said" }, event.data?.kind === "tool_call" ? h("code", {}, event.data.text) : (event.data?.text ?? event.data?.lines?.at(-1)?.text)) : label(event.verb.replace("instruction_", "")), h("small", {}, ` ${event.actor}${event.reason ? ` · ${event.reason}` : ""}`)),
      when(event.at),
    ),
  );
  return panel("History", { note: "newest first" }, h("ul", { class: "feed" }, items));
}
