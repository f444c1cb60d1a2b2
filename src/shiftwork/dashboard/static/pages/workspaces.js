// All workspaces of the queue, and their databases.

import { tryGet } from "../api.js";
import { h } from "../dom.js";
import { badge, empty, panel, table } from "../parts.js";
import { count, label, plural, span, when } from "../words.js";

const TONES = { up: "good", read_only: "warm", down: "bad" };

export default {
  title: "Workspaces",

  async load() {
    const [workspaces, databases] = await Promise.all([tryGet("/api/workspaces"), tryGet("/api/databases")]);
    return { workspaces: workspaces?.workspaces ?? null, databases: databases?.databases ?? [] };
  },

  view({ workspaces, databases }) {
    const refused = empty("Only the operator of this server can list all workspaces.", "Sign in with a token that has the scope server.");
    const heading = h("h1", {}, "Workspaces");
    if (workspaces === null) return [heading, refused];
    const mapped = databases.some((each) => each.name !== null);
    return [heading, mapped ? ofDatabases(databases) : null, ofWorkspaces(workspaces, mapped)];
  },
};

function ofDatabases(databases) {
  const well = databases.filter((each) => each.state === "up").length;
  const columns = [
    { title: "Database", cell: (each) => [h("b", {}, each.name), each.is_default ? h("small", {}, " new workspaces") : null] },
    { title: "State", cell: (each) => [badge(label(each.state), TONES[each.state]), each.error ? h("small", {}, ` ${each.error}`) : null] },
    { title: "Workspaces", class: "end", cell: (each) => count(each.workspaces) },
    ...counts(),
    { title: "Response time", class: "end", cell: (each) => (each.answered_in_ms === null ? "–" : span(each.answered_in_ms / 1000)) },
    { title: "Maintenance", class: "end", cell: late },
  ];
  return panel("Databases", { note: `${well} of ${plural(databases.length, "database")} up`, wide: true }, table("Databases", columns, databases, { each: (each) => ({ key: each.name }) }));
}

function late(database) {
  if (database.maintenance_late_sec === null) return "–";
  return database.maintenance_late_sec ? badge(`${span(database.maintenance_late_sec)} late`, "warm") : "on time";
}

function ofWorkspaces(workspaces, mapped) {
  const columns = [
    { title: "Workspace", cell: (each) => h("a", { href: `/?workspace=${encodeURIComponent(each.name)}` }, each.name) },
    ...(mapped ? [{ title: "Database", cell: place }] : []),
    { title: "Profile", cell: (each) => each.profile ?? "–" },
    ...counts(),
    { title: "Created", class: "end", cell: (each) => when(each.created_at) },
  ];
  return panel("All workspaces", { note: plural(workspaces.length, "workspace"), wide: true }, table("All workspaces", columns, workspaces, { none: empty("There are no workspaces yet."), each: (each) => ({ key: each.name }) }));
}

function place(workspace) {
  if (workspace.state === "unreachable") return [workspace.database, " ", badge("Down", "bad")];
  return workspace.moving_to ? [workspace.database, " ", badge(`Moving to ${workspace.moving_to}`, "warm")] : workspace.database;
}

function counts() {
  const fields = { "Open tasks": "open_tasks", Ready: "ready", Running: "running", "Dead letters": "dead_lettered" };
  return Object.entries(fields).map(([title, field]) => ({ title, class: "end", cell: (each) => count(each[field]) }));
}
