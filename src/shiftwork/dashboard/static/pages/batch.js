// One batch: its state at the provider, and the outcome of each of its tasks.

import { get } from "../api.js";
import { h } from "../dom.js";
import { badge, empty, facts, panel, table, taskLink } from "../parts.js";
import { label, money, plural, shortId, when } from "../words.js";
import { answered, state } from "./batches.js";

const TONES = { open: "plain", completed: "good", failed: "bad", released: "warm", late: "warm" };

export default {
  title: "Batch",

  load: (params) => get(`/api/batches/${encodeURIComponent(params.id)}`),

  view(batch) {
    const columns = [
      { title: "Task", cell: (each) => taskLink(each.task_id) },
      { title: "Answer", cell: (each) => badge(label(each.status), TONES[each.status]) },
    ];
    const about = facts([
      ["State", h("span", {}, state(batch))],
      ["Provider", batch.provider],
      ["Model", batch.model],
      ["Id at the provider", batch.external_id],
      ["Answered", answered(batch)],
      ["Cost", money(batch.cost_usd)],
      ["Gathered", when(batch.created_at)],
      ["Posted", when(batch.posted_at)],
      ["Expires", batch.status === "ended" ? null : when(batch.expires_at)],
      ["Ended", batch.ended_at === null ? null : when(batch.ended_at)],
      ["Problem", batch.error],
    ]);
    const tasks = table("Tasks of the batch", columns, batch.tasks, { none: empty("It has no tasks."), each: (each) => ({ key: each.task_id, href: `/tasks/${each.task_id}` }) });
    return [h("h1", {}, `Batch ${shortId(batch.id)}`), panel("About", {}, about), panel("Tasks", { note: plural(batch.tasks.length, "task") }, tasks)];
  },
};
