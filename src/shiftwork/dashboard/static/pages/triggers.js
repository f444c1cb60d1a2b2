// Triggers, which submit tasks by themselves: schedules, webhooks, files, events.

import { post, tryGet } from "../api.js";
import { h } from "../dom.js";
import { attempt, badge, button, empty, panel, table } from "../parts.js";
import { count, when } from "../words.js";

export default {
  title: "Triggers",

  load: async () => (await tryGet("/api/triggers", { limit: 200 })) ?? { triggers: [] },

  view({ triggers }, ctx) {
    const act = async (message, action) => {
      if (await attempt(message, action)) await ctx.reload();
    };
    const path = (each) => `/api/triggers/${encodeURIComponent(each.name)}`;
    const columns = [
      { title: "Trigger", cell: (each) => h("b", {}, each.name) },
      { title: "Fires on", cell: (each) => source(each.on) },
      { title: "Creates", cell: (each) => (each.dag ? `DAG ${each.dag.title ?? ""}` : each.task?.type) },
      { title: "Next", class: "end", cell: (each) => (each.paused_at ? badge("paused", "warm") : when(each.next_at)) },
      { title: "Last", class: "end", cell: (each) => when(each.last_fired_at) },
      { title: "Fired", class: "end", cell: (each) => count(each.fired) },
      {
        title: "",
        class: "end",
        cell: (each) =>
          h(
            "span",
            { class: "row end" },
            button("Fire", () => act(`${each.name} fired.`, () => post(`${path(each)}/fire`)), { tone: "quiet" }),
            each.paused_at ? button("Resume", () => act(`${each.name} was resumed.`, () => post(`${path(each)}/resume`)), { tone: "quiet" }) : button("Pause", () => act(`${each.name} was paused.`, () => post(`${path(each)}/pause`)), { tone: "quiet" }),
          ),
      },
    ];
    const none = empty("There are no triggers yet.", "Create one with shiftwork triggers add NAME: a schedule, a webhook, a file or an event.");
    return [h("h1", {}, "Triggers"), panel("Tasks submitted automatically", {}, table("Triggers", columns, triggers, { none, each: (each) => ({ key: each.name }) }))];
  },
};

function source({ kind, ...terms }) {
  const details = [terms.at, terms.zone, terms.signature, terms.pattern, terms.title, ...(terms.events ?? terms.ends ?? [])];
  return [badge(kind), " ", h("code", {}, details.filter(Boolean).join(" "))];
}
