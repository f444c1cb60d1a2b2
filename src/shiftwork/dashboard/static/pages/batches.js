// Batches of tasks that were sent to a provider together, at half the price.

import { get } from "../api.js";
import { h } from "../dom.js";
import { badge, button, empty, link, meter, panel, table } from "../parts.js";
import { query, setFilters } from "../route.js";
import { count, label, money, shortId, when } from "../words.js";

const TONES = { gathered: "plain", posting: "warm", posted: "good", ended: "plain" };
const STATES = Object.keys(TONES);

export default {
  title: "Batches",

  load: async (_params, filters) => (await get("/api/batches", { status: filters.status, limit: 100 })).batches,

  view(batches) {
    const columns = [
      { title: "State", class: "slim", cell: state },
      { title: "Provider", cell: (each) => [link(`/batches/${each.id}`, each.provider), h("small", {}, ` ${shortId(each.id)}`)] },
      { title: "Model", cell: (each) => each.model },
      { title: "Answered", cell: answered },
      { title: "Posted", class: "end", cell: (each) => when(each.posted_at) },
      { title: "Expires", class: "end", cell: (each) => (each.status === "ended" ? "–" : when(each.expires_at)) },
      { title: "Cost", class: "end", cell: (each) => money(each.cost_usd) },
    ];
    const none = empty(query().status ? "No batch is in this state." : "There are no batches yet.", "Maintenance gathers tasks with urgency: batch if it has the provider's API key.");
    return [h("h1", {}, "Batches"), panel("Tasks sent to a provider together", { actions: filter() }, table("Batches", columns, batches, { none, each: (each) => ({ key: each.id, href: `/batches/${each.id}` }) }))];
  },
};

export function state(batch) {
  const stopping = batch.status === "posted" && batch.cancel_asked_at !== null;
  return [badge(stopping ? "Stopping" : label(batch.status), stopping ? "warm" : TONES[batch.status]), batch.error && batch.status !== "ended" ? h("span", { title: batch.error }, " ", badge("Waits", "warm")) : null];
}

export function answered(batch) {
  const done = batch.requests - batch.open;
  return h("span", { class: "with-meter" }, meter(done, batch.requests, "Answered"), ` ${count(done)}/${count(batch.requests)}`);
}

function filter() {
  const chosen = query().status;
  return h("span", { class: "row end" }, [null, ...STATES].map((name) => button(name ? label(name) : "All", () => setFilters({ status: name }), { tone: (chosen ?? null) === name ? "primary" : "quiet" })));
}
