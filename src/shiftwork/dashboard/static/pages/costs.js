// Costs by day as a chart, and by model, agent and type.

import { get } from "../api.js";
import { h } from "../dom.js";
import { empty, panel, table } from "../parts.js";
import { count, money, now } from "../words.js";

const DAYS = 30;
const DAY_SEC = 86400;
const GROUPS = ["model", "agent", "type"];

export default {
  title: "Costs",

  async load() {
    const since = (Math.floor(now() / DAY_SEC) - DAYS + 1) * DAY_SEC;
    const [days, ...groups] = await Promise.all(["day", ...GROUPS].map((by) => get("/api/costs", { by, since, limit: 100 })));
    return { since, days, groups };
  },

  view({ since, days, groups }) {
    const note = `${money(days.total_usd)} in ${DAYS} days, ${money(days.daily_spend_usd)} today (UTC)`;
    return [
      h("h1", {}, "Costs"),
      panel("By day", { note, wide: true }, days.total_usd ? chart(since, days.costs) : empty("Nothing was spent.", "Costs come from cost_usd, or from tokens and model, as reported by agents.")),
      h("div", { class: "columns even" }, groups.map((found, place) => h("div", {}, panel(`By ${GROUPS[place]}`, {}, group(GROUPS[place], found.costs))))),
    ];
  },
};

function chart(since, costs) {
  const spent = new Map(costs.map((each) => [each.value, each.cost_usd]));
  const days = Array.from({ length: DAYS }, (_, place) => new Date((since + place * DAY_SEC) * 1000).toISOString().slice(0, 10));
  const top = Math.max(...days.map((day) => spent.get(day) ?? 0));
  const width = 720 / DAYS;
  const bars = days.map((day, place) => {
    const height = (110 * (spent.get(day) ?? 0)) / top;
    return h("rect", { x: place * width + 2, y: 120 - height, width: width - 4, height, rx: 2 }, h("title", {}, `${day}: ${money(spent.get(day) ?? 0)}`));
  });
  const words = `Cost of each of the last ${DAYS} days, at most ${money(top)}`;
  return h(
    "figure",
    { class: "cost-chart" },
    h("svg", { viewBox: "0 0 720 122", role: "img", "aria-label": words }, bars, h("line", { x1: 0, x2: 720, y1: 121, y2: 121 })),
    h("figcaption", {}, h("span", {}, days[0]), h("span", {}, `at most ${money(top)} a day`), h("span", {}, days[DAYS - 1])),
  );
}

function group(by, costs) {
  const columns = [
    { title: by.charAt(0).toUpperCase() + by.slice(1), cell: (each) => h("b", { class: "cut", title: each.value }, each.value ?? "none") },
    { title: "Cost", class: "end", cell: (each) => money(each.cost_usd) },
    { title: "Attempts", class: "end", cell: (each) => count(each.attempts) },
    { title: "Tokens", class: "end", cell: (each) => count(each.tokens_in + each.tokens_out) },
  ];
  return table(`Costs by ${by}`, columns, costs, { none: empty("Nothing was spent."), each: (each) => ({ key: each.value ?? "" }) });
}
