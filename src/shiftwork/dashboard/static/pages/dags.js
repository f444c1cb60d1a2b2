// The list of DAGs.

import { get } from "../api.js";
import { h } from "../dom.js";
import { button, chip, empty, link, meter, panel, table } from "../parts.js";
import { query, setFilters } from "../route.js";
import { money, shortId, when } from "../words.js";

export default {
  title: "DAGs",

  load: (_params, filters) => get("/api/dags", { after: filters.after, limit: 50 }),

  view({ dags, next }) {
    const columns = [
      { title: "State", class: "slim", cell: (dag) => chip(dag.status) },
      { title: "DAG", cell: (dag) => [link(`/dags/${dag.id}`, dag.title ?? "untitled"), h("small", {}, ` ${shortId(dag.id)}`)] },
      { title: "Progress", cell: (dag) => h("span", { class: "with-meter" }, meter(dag.done, dag.total, "Done"), ` ${dag.done}/${dag.total}`) },
      { title: "Spent", class: "end", cell: (dag) => `${money(dag.spent_usd)}${dag.budget_ceiling_usd === null ? "" : ` of ${money(dag.budget_ceiling_usd)}`}` },
      { title: "Created by", class: "wide", cell: (dag) => dag.created_by ?? "–" },
      { title: "Created", class: "end", cell: (dag) => when(dag.created_at) },
    ];
    const none = empty("There are no DAGs yet.", "Tasks submitted together with dependencies form one.");
    return [
      h("h1", {}, "DAGs"),
      panel("Tasks that belong together", {}, table("DAGs", columns, dags, { none, each: (dag) => ({ key: dag.id, href: `/dags/${dag.id}` }) }), h("div", { class: "row end" }, query().after ? button("First", () => setFilters({ after: null })) : null, next ? button("More", () => setFilters({ after: next })) : null)),
    ];
  },
};
