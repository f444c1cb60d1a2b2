// Pauses, breakers, cooldowns, rate limits and budgets, and the controls to change them.

import { get, post, put, remove } from "../api.js";
import { h } from "../dom.js";
import { ask, attempt, badge, button, empty, meter, panel, table } from "../parts.js";
import { count, label, money, now, percent, when } from "../words.js";

const STATES = { closed: "good", half_open: "warm", open: "bad" };

export default {
  title: "Protection",

  async load() {
    const [status, pressure, breakers, cooldowns, limits, budgets] = await Promise.all([
      get("/api/queue"),
      get("/api/queue/backpressure"),
      get("/api/breakers"),
      get("/api/cooldowns"),
      get("/api/limits"),
      get("/api/budgets", { limit: 100 }),
    ]);
    return { status, pressure, breakers: breakers.breakers, cooldowns: cooldowns.cooldowns, limits: limits.limits, budgets: budgets.budgets };
  },

  view(data, ctx) {
    return [
      h("h1", {}, "Protection"),
      h("div", { class: "columns even" }, h("div", {}, pauses(data, ctx), budgetsOf(data, ctx)), h("div", {}, breakersOf(data, ctx), cooldownsOf(data, ctx), limitsOf(data, ctx))),
    ];
  },
};

async function act(ctx, message, action) {
  if (await attempt(message, action)) await ctx.reload();
}

function pauses({ status, pressure }, ctx) {
  const all = status.paused.includes("*");
  const pause = async () => {
    const filled = await ask("Pause", { text: "No work is handed out. Running tasks continue.", fields: [{ name: "type", label: "Type (empty: all)" }, { name: "reason", label: "Reason" }], yes: "Pause", tone: "danger" });
    if (filled) await act(ctx, "Paused.", () => post("/api/queue/pause", Object.fromEntries(Object.entries(filled).filter(([, value]) => value))));
  };
  const resume = (scope) => () => act(ctx, "Work is handed out again.", () => post("/api/queue/resume", scope === "*" ? {} : { type: scope.replace(/^type:/, "") }));
  const list = status.paused.map((scope) => h("li", { class: "warm" }, h("b", {}, scope === "*" ? "Everything" : scope), button("Resume", resume(scope))));
  return panel(
    "Pauses",
    { actions: all ? null : button("Pause …", pause) },
    list.length ? h("ul", { class: "feed" }, list) : h("p", { class: "calm" }, "Nothing is paused."),
    pressure.state === "normal" ? null : h("p", { class: "error" }, `The queue is ${label(pressure.state).toLowerCase()}: ${pressure.warnings.join(", ") || pressure.full.join(", ")}`),
  );
}

function breakersOf({ breakers }, ctx) {
  const columns = [
    { title: "Type", cell: (each) => h("b", {}, each.type) },
    { title: "State", cell: (each) => [badge(label(each.state), STATES[each.state]), each.state === "open" ? h("small", {}, " probes ", each.closed_until > now() ? when(each.closed_until) : "with the next claim") : null] },
    { title: "Failures", class: "end", cell: (each) => `${each.failures}/${each.failure_threshold}` },
    {
      title: "",
      class: "end",
      cell: (each) => (each.state === "closed" ? button("Open", () => act(ctx, `No ${each.type} is handed out for now.`, () => post(`/api/breakers/${encodeURIComponent(each.type)}/trip`)), { tone: "quiet" }) : button("Reset", () => act(ctx, `${each.type} is handed out again.`, () => post(`/api/breakers/${encodeURIComponent(each.type)}/reset`)))),
    },
  ];
  const shown = [...breakers].sort((a, b) => (a.state === "closed") - (b.state === "closed") || a.type.localeCompare(b.type));
  return panel("Circuit breakers", { note: "by type" }, table("Circuit breakers", columns, shown, { none: empty("There are no task types yet."), each: (each) => ({ key: each.type }) }));
}

function cooldownsOf({ cooldowns }, ctx) {
  const add = async () => {
    const filled = await ask("Add a cooldown", {
      text: "Until it ends, no agent gets work that needs it.",
      fields: [
        { name: "key", label: "Key", value: "provider:", required: true, hint: "provider:NAME, account:NAME, model:NAME or type:NAME" },
        { name: "seconds", label: "Seconds", type: "number", min: 1, value: 300, required: true },
        { name: "reason", label: "Reason" },
      ],
      yes: "Add",
    });
    if (filled) await act(ctx, "The cooldown was set.", () => put(`/api/cooldowns/${encodeURIComponent(filled.key)}`, { seconds: Number(filled.seconds), ...(filled.reason ? { reason: filled.reason } : {}) }));
  };
  const list = cooldowns.map((each) => h("li", { class: "warm", "data-key": each.key }, h("span", {}, h("code", {}, each.key), h("small", {}, ` ${each.reason ?? ""}`)), each.until === null ? h("span", {}, "until its key is renewed") : when(each.until), button("Lift", () => act(ctx, "The cooldown was lifted.", () => remove(`/api/cooldowns/${encodeURIComponent(each.key)}`)), { tone: "quiet" })));
  return panel("Cooldowns", { note: "after a rate limit", actions: button("Add …", add) }, list.length ? h("ul", { class: "feed" }, list) : empty("There are no cooldowns."));
}

function limitsOf({ limits }, ctx) {
  const columns = [
    { title: "Key", cell: (each) => h("code", {}, each.key) },
    { title: "Requests", cell: (each) => (each.requests === null ? "–" : h("span", { class: "with-meter" }, meter(each.requests_used, each.requests, "Used"), ` ${each.requests_used}/${each.requests}`)) },
    { title: "Tokens", cell: (each) => (each.tokens === null ? "–" : `${count(each.tokens_used)}/${count(each.tokens)}`) },
    { title: "Concurrent", class: "end", cell: (each) => (each.concurrency === null ? "–" : `${each.held}/${each.concurrency}`) },
    { title: "", class: "end", cell: (each) => button("Remove", () => act(ctx, "The limit was removed.", () => remove(`/api/limits/${encodeURIComponent(each.key)}`)), { tone: "quiet" }) },
  ];
  return panel("Rate limits", { note: "never exceeded" }, table("Rate limits", columns, limits, { none: empty("There are no rate limits.", "shiftwork limits set model:NAME --requests 60 --window 60"), each: (each) => ({ key: each.key }) }));
}

function budgetsOf({ budgets }, ctx) {
  const set = (budget) => async () => {
    const filled = await ask(`Budget of ${budget.kind} ${budget.id}`, { text: "The most it may cost in total. Work that was held back continues once there is room.", fields: [{ name: "ceiling", label: "US dollars (empty: no limit)", type: "number", min: 0, value: budget.ceiling_usd ?? "" }], yes: "Set" });
    if (!filled) return;
    const ceiling = filled.ceiling === "" ? null : Number(filled.ceiling);
    await act(ctx, "The budget was set.", () => put("/api/budgets", { kind: budget.kind, ...(budget.kind === "day" ? {} : { id: budget.id }), ceiling_usd: ceiling }));
  };
  const columns = [
    { title: "Budget", cell: (each) => [badge(each.kind), h("span", { class: "cut", title: each.id }, ` ${each.kind === "day" || each.kind === "agent" ? each.id : `…${each.id.slice(-6)}`}`)] },
    { title: "Spent", cell: (each) => h("span", { class: "with-meter" }, each.ceiling_usd ? meter(each.spent_usd + each.granted_usd, each.ceiling_usd, "Spent and granted", percent(each.spent_usd, each.ceiling_usd) > 80 ? "warm" : "") : null, ` ${money(each.spent_usd)}`) },
    { title: "Ceiling", class: "end", cell: (each) => money(each.ceiling_usd) },
    { title: "", class: "end", cell: (each) => [each.holds_back ? badge("holds back", "bad") : null, button("Set", set(each), { tone: "quiet" })] },
  ];
  const day = async () => set({ kind: "day", id: "every day", ceiling_usd: budgets.find((each) => each.kind === "day")?.ceiling_usd ?? null })();
  return panel("Budgets", { actions: button("Day …", day) }, table("Budgets", columns, budgets, { none: empty("There are no budgets.", "shiftwork budgets set day 40"), each: (each) => ({ key: `${each.kind}-${each.id}` }) }));
}
