// Tasks that wait for a person: those that a guard has stopped, and questions of agents.

import { get, post } from "../api.js";
import { h } from "../dom.js";
import { schemaForm } from "../form.js";
import { ask, attempt, badge, button, empty, facts, json, taskLink } from "../parts.js";
import { money, when } from "../words.js";

export default {
  title: "Approvals",

  load: () => get("/api/approvals", { limit: 200 }),

  view({ approvals }, ctx) {
    const none = empty("Nothing waits for you.", "Tasks stopped by a guard and questions of agents appear here.");
    return [h("h1", {}, "Approvals"), approvals.length ? h("div", { class: "cards" }, approvals.map((asked) => card(asked, ctx))) : none];
  },
};

function card(asked, ctx) {
  return h(
    "article",
    { class: "panel card", "data-key": `${asked.task_id}-${asked.version}`, "aria-label": asked.title ?? asked.type },
    h("header", {}, h("h2", {}, taskLink(asked.task_id, asked.title ?? asked.type)), badge(asked.kind === "question" ? "Question" : "Approval", asked.kind === "question" ? "cool" : "warm")),
    asked.kind === "question" ? question(asked, ctx) : approval(asked, ctx),
    h("p", { class: "note" }, "asked ", when(asked.asked_at), asked.expires_at ? [", ends ", when(asked.expires_at)] : ""),
  );
}

function question(asked, ctx) {
  const answer = async (value) => {
    if (await attempt("The answer was sent.", () => post(`/api/tasks/${asked.task_id}/answer`, { value }))) await ctx.reload();
  };
  // Unfinished input survives other changes of the page.
  return [h("p", { class: "prose" }, asked.question), work(asked).some(Boolean) ? h("details", { "data-key": `work-${asked.task_id}` }, h("summary", {}, `The ${asked.type} task`), work(asked)) : null, h("div", { "data-kept": true, "data-key": `form-${asked.task_id}` }, schemaForm(asked.schema, answer))];
}

const EXPIRY = new Set(["on_expire", "expire_after_sec"]);

function guard(rule) {
  const fits = Object.entries(rule).filter(([name, value]) => !EXPIRY.has(name) && value !== null);
  return `the guard for ${fits.map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ") || "all tasks"}`;
}

function work(asked) {
  const given = Object.keys(asked.payload).length;
  return [given ? json(asked.payload) : null, asked.spec ? h("details", {}, h("summary", {}, "Specification"), json(asked.spec)) : null];
}

function approval(asked, ctx) {
  const decide = async (word, title, tone) => {
    const filled = await ask(title, { text: asked.title ?? asked.type, fields: [{ name: "note", label: "Note (kept with the decision)" }], yes: title, tone });
    if (!filled) return;
    const body = { revision: asked.revision, ...(filled.note ? { note: filled.note } : {}) };
    if (await attempt(word === "approve" ? "Approved: it may run." : "Rejected: it will not run.", () => post(`/api/tasks/${asked.task_id}/${word}`, body))) await ctx.reload();
  };
  return [
    facts([
      ["Type", asked.type],
      ["Stopped by", guard(asked.rule)],
      ["Created by", asked.created_by],
      ["Tool", asked.tool_name],
      ["Estimated cost", asked.estimated_cost_usd === null ? null : money(asked.estimated_cost_usd)],
      ["Tags", asked.tags.length ? asked.tags.map((tag) => badge(tag)) : null],
    ]),
    work(asked),
    h("div", { class: "row end" }, button("Reject", () => decide("reject", "Reject", "danger"), { tone: "danger" }), button("Approve", () => decide("approve", "Approve", "primary"), { tone: "primary" })),
  ];
}
