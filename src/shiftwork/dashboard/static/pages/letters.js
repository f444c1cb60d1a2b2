// Dead letters, grouped by failure: inspect one, and decide for one or for a whole group.

import { get, post } from "../api.js";
import { h } from "../dom.js";
import { ask, attempt, badge, button, empty, json, taskLink, toast } from "../parts.js";
import { plural, when } from "../words.js";

export const DECISIONS = [
  ["retry", "Retry", "It gets new attempts."],
  ["modify_and_retry", "Change and retry", "Its payload is changed first."],
  ["abandon", "Abandon", "It stays here as reviewed and is not retried."],
  ["cancel", "Cancel", "It is cancelled, with everything that depends on it."],
  ["escalate", "Escalate", "Someone else should review it."],
];

export default {
  title: "Dead letters",

  async load(_params, _filters, local) {
    const groups = (await get("/api/dead-letters/groups")).items;
    const letters = local.open ? (await get("/api/dead-letters", { signature: local.open, limit: 50 })).dead_letters : [];
    return { groups, letters };
  },

  view({ groups, letters }, ctx) {
    const none = empty("No dead letters.", "Tasks that need a decision after their failures appear here.");
    return [h("h1", {}, "Dead letters"), groups.length ? groups.map((group) => section(group, letters, ctx)) : none];
  },
};

function section(group, letters, ctx) {
  const { local } = ctx;
  const open = local.open === group.signature;
  const toggle = () => {
    local.open = open ? null : group.signature;
    ctx.reload();
  };
  return h(
    "section",
    { class: "panel", "data-key": group.signature, "aria-label": group.signature },
    h("header", {}, h("h2", {}, h("code", {}, group.type), " ", group.reason), badge(plural(group.total, "task"), "bad"), h("span", { class: "note" }, "last ", when(group.last_at))),
    h("p", { class: "error" }, group.example),
    h("div", { class: "row end" }, button(open ? "Hide" : "Show", toggle), button("Abandon all", () => all(group, "abandon", "Abandon", "danger", ctx), { tone: "danger" }), button("Retry all", () => all(group, "retry", "Retry", "primary", ctx), { tone: "primary" })),
    open ? h("ul", { class: "feed letters" }, letters.map((letter) => item(letter, ctx))) : null,
  );
}

function item(letter, ctx) {
  return h(
    "li",
    { "data-key": `${letter.task_id}-${letter.round}` },
    h("span", {}, taskLink(letter.task_id), letter.poison_pill ? badge("poison", "bad") : null, h("small", {}, ` ${plural(letter.retry_count, "attempt")} · `), when(letter.dead_lettered_at)),
    h("details", {}, h("summary", {}, "Payload and failures"), json(letter.payload), json(letter.failure_history)),
    h("span", { class: "row" }, DECISIONS.map(([decision, name, hint]) => button(name, () => decide(letter, decision, name, hint, ctx), { tone: "quiet" }))),
  );
}

// Ask for confirmation, then decide for one dead letter.
export async function decide(letter, decision, name, hint, ctx) {
  const fields = [{ name: "note", label: "Note (kept with the decision)" }];
  if (decision === "modify_and_retry") fields.unshift({ name: "payload", label: "Payload", long: true, value: JSON.stringify(letter.payload, null, 2), required: true });
  const filled = await ask(name, { text: hint, fields, yes: name, tone: decision === "cancel" ? "danger" : "primary" });
  if (!filled) return;
  const body = { decision, ...(filled.note ? { note: filled.note } : {}) };
  if (decision === "modify_and_retry") {
    try {
      body.change = { payload: JSON.parse(filled.payload) };
    } catch (error) {
      return toast(`The payload is not JSON: ${error.message}`, "bad");
    }
  }
  if (await attempt(`${name}: done.`, () => post(`/api/dead-letters/${letter.task_id}/review`, body))) await ctx.reload();
}

async function all(group, decision, name, tone, ctx) {
  const filled = await ask(`${name} ${plural(group.total, "task")}?`, { text: group.signature, fields: [{ name: "note", label: "Note (kept with the decision)" }], yes: name, tone });
  if (!filled) return;
  const body = { signature: group.signature, decision, ...(filled.note ? { note: filled.note } : {}) };
  if (await attempt(`${name}: ${plural(group.total, "task")}.`, () => post("/api/dead-letters/redrive", body))) await ctx.reload();
}
