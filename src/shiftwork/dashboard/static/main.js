// The frame around all pages: finds the page of an address, loads it, and keeps it up to date.

import { get, keepToken, token, tryGet, waitingForPeople, workspace } from "./api.js";
import { h, patch } from "./dom.js";
import * as keys from "./keys.js";
import * as live from "./live.js";
import { ask, badge, empty } from "./parts.js";
import * as route from "./route.js";
import { ago, count, setClock } from "./words.js";
import accounts from "./pages/accounts.js";
import agents from "./pages/agents.js";
import alerts from "./pages/alerts.js";
import approvals from "./pages/approvals.js";
import batch from "./pages/batch.js";
import batches from "./pages/batches.js";
import costs from "./pages/costs.js";
import dag from "./pages/dag.js";
import dags from "./pages/dags.js";
import letters from "./pages/letters.js";
import overview from "./pages/overview.js";
import protection from "./pages/protection.js";
import task from "./pages/task.js";
import tasks from "./pages/tasks.js";
import triggers from "./pages/triggers.js";
import workspaces from "./pages/workspaces.js";

const ROUTES = [
  [/^\/$/, overview],
  [/^\/tasks$/, tasks],
  [/^\/tasks\/(?<id>[^/]+)$/, task],
  [/^\/dags$/, dags],
  [/^\/dags\/(?<id>[^/]+)$/, dag],
  [/^\/approvals$/, approvals],
  [/^\/dead-letters$/, letters],
  [/^\/agents$/, agents],
  [/^\/accounts$/, accounts],
  [/^\/costs$/, costs],
  [/^\/batches$/, batches],
  [/^\/batches\/(?<id>[^/]+)$/, batch],
  [/^\/protection$/, protection],
  [/^\/triggers$/, triggers],
  [/^\/alerts$/, alerts],
  [/^\/workspaces$/, workspaces],
];
const SECTIONS = [
  ["/", "Overview", "o"],
  ["/tasks", "Tasks", "t"],
  ["/dags", "DAGs", "d"],
  ["/approvals", "Approvals", "p"],
  ["/dead-letters", "Dead letters", "l"],
  ["/agents", "Agents", "a"],
  ["/accounts", "Accounts", "q"],
  ["/costs", "Costs", "c"],
  ["/batches", "Batches", "h"],
  ["/protection", "Protection", "b"],
  ["/triggers", "Triggers", "r"],
  ["/alerts", "Alerts", "w"],
  ["/workspaces", "Workspaces", "s"],
];
const PAUSE_MS = 1000; // at least this long between two loads, even with many events
const EVERY_MS = 15000; // reload this often even without events

const frame = { me: null, status: null, alerts: 0, asked: 0, stream: "connecting" };
let current = null; // what is shown: {page, params, data, error, local}

async function open() {
  const path = decodeURIComponent(location.pathname);
  const found = ROUTES.map(([pattern, page]) => [path.match(pattern), page]).find(([match]) => match);
  const page = found?.[1] ?? null;
  const params = found?.[0].groups ?? {};
  const same = current && current.page === page && JSON.stringify(current.params) === JSON.stringify(params);
  if (!same) {
    current = { page, params, data: null, error: null, local: {} };
    document.title = `${page?.title ?? "Not found"} · Shiftwork`;
    render();
    document.getElementById("main")?.scrollTo(0, 0);
  }
  await load();
  if (!same) document.getElementById("main")?.focus({ preventScroll: true });
}

async function load() {
  const about = current;
  if (!about?.page) return render();
  try {
    const data = await about.page.load(about.params, route.query(), about.local);
    if (about !== current) return;
    current.data = data;
    current.error = null;
    if (data?.title) document.title = `${data.title} · Shiftwork`;
  } catch (error) {
    if (about !== current) return;
    if (error.status === 401) return signIn(error);
    current.error = error;
  }
  render();
}

async function loadFrame() {
  try {
    frame.me = await get("/api/me");
    setClock(frame.me.now);
    frame.status = await get("/api/queue");
    frame.alerts = (await get("/api/alerts", { open_only: true, limit: 1000 })).alerts.length;
    frame.asked = await waitingForPeople();
  } catch (error) {
    if (error.status === 401) signIn(error);
  }
  renderFrame();
}

// -- drawing ------------------------------------------------------------------------------------------------------

function render() {
  const main = document.getElementById("main");
  if (!main || !current) return;
  patch(main, mainOf(content()));
}

function mainOf(...content) {
  return h("main", { id: "main", tabindex: "-1" }, ...content);
}

function content() {
  const { page, data, error, local } = current;
  if (!page) return empty("There is no such page.", "Choose one on the left.");
  if (error && !data) return failure(error);
  if (!data) return h("p", { class: "loading", "data-key": "loading" }, "Loading …");
  const ctx = { reload: load, local, redraw: render };
  return h("div", { class: "page", "data-key": location.pathname }, error && h("p", { class: "stale", role: "alert" }, `Not current: ${error.message}`), page.view(data, ctx));
}

function failure(error) {
  return h("div", { class: "empty bad" }, h("p", { class: "strong" }, error.message), error.hint && h("p", {}, error.hint), h("button", { type: "button", onclick: load }, "Try again"));
}

function renderFrame() {
  const shell = document.getElementById("shell");
  const fresh = nav();
  if (shell) patch(shell, fresh);
  else document.getElementById("app").replaceChildren(fresh, mainOf());
}

function nav() {
  const counts = frame.status?.counts ?? {};
  const waiting = { "/approvals": frame.asked, "/dead-letters": counts.dead_lettered, "/alerts": frame.alerts };
  const here = `/${location.pathname.split("/")[1]}`;
  return h(
    "nav",
    { id: "shell", "aria-label": "Sections" },
    h("a", { class: "brand", href: route.to("/"), "data-inside": true }, h("img", { src: "/static/icon.svg", alt: "", width: 26, height: 26 }), h("span", {}, "Shiftwork")),
    h("button", { type: "button", class: "workspace", title: "Change the workspace", onclick: changeWorkspace }, frame.me?.workspace ?? "…"),
    h(
      "ul",
      {},
      SECTIONS.map(([path, name, letter]) =>
        h("li", {}, h("a", { href: route.to(path), "data-inside": true, "aria-current": path === here ? "page" : null, title: `${name} (g ${letter})` }, name, waiting[path] ? badge(count(waiting[path]), path === "/approvals" ? "warm" : "bad") : null)),
      ),
    ),
    h(
      "footer",
      {},
      h("span", { class: `stream ${frame.stream}` }, h("i", { class: "dot" }), { live: "Live", away: "Reconnecting", connecting: "Connecting" }[frame.stream]),
      frame.status?.paused?.length ? badge("Paused", "warm") : null,
      h("button", { type: "button", class: "quiet", onclick: changeTheme, title: "Light or dark" }, "◐", h("span", { class: "hidden" }, "Light or dark")),
      h("button", { type: "button", class: "quiet", onclick: keys.help, title: "Keyboard (?)" }, "?", h("span", { class: "hidden" }, "Keyboard")),
      token() ? h("button", { type: "button", class: "quiet", onclick: signOut }, "Sign out") : null,
    ),
  );
}

async function changeWorkspace() {
  const known = await tryGet("/api/workspaces").catch(() => null); // only for the operator; others type the name
  const options = known?.workspaces.map((each) => [each.name, each.database ? `in ${each.database}` : ""]);
  const filled = await ask("Workspace", { fields: [{ name: "workspace", label: "Name", value: workspace() ?? frame.me?.workspace, options }], yes: "Open" });
  if (filled) location.assign(`${location.pathname}?workspace=${encodeURIComponent(filled.workspace)}`);
}

function changeTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = localStorage["shiftwork.theme"] = now === "dark" ? "light" : "dark";
}

// -- signing in ---------------------------------------------------------------------------------------------------

function signIn(error) {
  live.stop();
  const form = h(
    "form",
    {
      class: "sign-in",
      onsubmit: (event) => {
        event.preventDefault();
        keepToken(form.elements.token.value.trim());
        begin();
      },
    },
    h("img", { src: "/static/icon.svg", alt: "", width: 48, height: 48 }),
    h("h1", {}, "Shiftwork"),
    h("p", {}, token() ? error.message : "This server requires a token. It stays in this tab."),
    h("label", {}, "Token", h("input", { name: "token", type: "password", required: true, autocomplete: "off" })),
    h("button", { class: "primary" }, "Sign in"),
    h("p", { class: "note" }, "Create one with ", h("code", {}, "shiftwork tokens create NAME --scope read"), "."),
  );
  keepToken(null);
  current = null;
  document.getElementById("app").replaceChildren(h("main", { id: "main" }, form));
  form.elements.token.focus();
}

function signOut() {
  keepToken(null);
  begin();
}

// -- reloading ----------------------------------------------------------------------------------------------------

let due = null;

function soon() {
  due ??= setTimeout(async () => {
    due = null;
    if (document.hidden || !current) return;
    await Promise.all([load(), loadFrame()]);
  }, PAUSE_MS);
}

function tick() {
  for (const node of document.querySelectorAll("time[data-at]")) {
    const text = ago(Number(node.dataset.at));
    if (node.textContent !== text) node.textContent = text;
  }
}

async function begin() {
  document.getElementById("app").replaceChildren(nav(), mainOf());
  const framed = loadFrame();
  await Promise.race([framed, new Promise((late) => setTimeout(late, PAUSE_MS))]); // with a slow database, show the page as loading
  if (!document.getElementById("shell")) return;
  live.start();
  await Promise.all([open(), framed]);
}

document.documentElement.dataset.theme = localStorage["shiftwork.theme"] ?? "";
if (!document.documentElement.dataset.theme) delete document.documentElement.dataset.theme;
document.addEventListener("click", (event) => {
  route.follow(event);
  keys.openRow(event);
});
document.addEventListener("visibilitychange", () => !document.hidden && soon());
keys.listen(SECTIONS);
route.onChange(() => {
  renderFrame();
  open();
});
live.onEvents((events) => {
  current?.page?.events?.(events, current.local);
  soon();
});
live.onState((state) => {
  frame.stream = state;
  if (document.getElementById("shell")) renderFrame();
});
setInterval(tick, 1000);
setInterval(soon, EVERY_MS);
begin();
