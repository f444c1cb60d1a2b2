// Alerts, open ones or all.

import { get, post } from "../api.js";
import { h } from "../dom.js";
import { attempt, badge, button, empty, panel, table, taskLink } from "../parts.js";
import { query, setFilters } from "../route.js";
import { when } from "../words.js";

const MOST = 1000;

export default {
  title: "Alerts",

  async load(_params, filters) {
    const { alerts } = await get("/api/alerts", { open_only: filters.all !== "1", kind: filters.kind, limit: MOST });
    return { alerts: alerts.reverse() };
  },

  view({ alerts }, ctx) {
    const filters = query();
    const acknowledge = async (list) => {
      const message = list.length === 1 ? "The alert was acknowledged." : `${list.length} alerts were acknowledged.`;
      const all = async () => {
        for (const alert of list) await post(`/api/alerts/${alert.seq}/acknowledge`);
      };
      if (await attempt(message, all)) await ctx.reload();
    };
    const open = alerts.filter((alert) => alert.acknowledged_at === null);
    const columns = [
      { title: "Severity", class: "slim", cell: (alert) => badge(alert.severity, alert.severity === "critical" ? "bad" : alert.severity === "warning" ? "warm" : "plain") },
      { title: "Message", cell: (alert) => [alert.message, h("small", {}, ` ${alert.kind}`)] },
      { title: "Task", cell: (alert) => (alert.task_id ? taskLink(alert.task_id) : "–") },
      { title: "When", class: "end", cell: (alert) => when(alert.at) },
      { title: "", class: "end", cell: (alert) => (alert.acknowledged_at === null ? button("Acknowledge", () => acknowledge([alert]), { tone: "quiet" }) : h("small", {}, `acknowledged by ${alert.acknowledged_by}`)) },
    ];
    const switches = h("span", { class: "row" }, button(filters.all === "1" ? "Only open" : "All", () => setFilters({ all: filters.all === "1" ? null : "1" }), { tone: "quiet" }), open.length > 1 ? button("Acknowledge all", () => acknowledge(open)) : null);
    return [h("h1", {}, "Alerts"), panel("Newest first", { actions: switches }, table("Alerts", columns, alerts, { none: empty("There are no open alerts."), each: (alert) => ({ key: alert.seq }) }))];
  },
};
