// Accounts at providers: the usage of their windows, and when they can be used again.

import { get, post } from "../api.js";
import { h } from "../dom.js";
import { attempt, badge, button, empty, meter, panel, table } from "../parts.js";
import { count, label, money, percent, when } from "../words.js";

const TONES = { available: "good", resting: "warm", refused: "bad" };

export default {
  title: "Accounts",

  async load() {
    return (await get("/api/accounts")).accounts;
  },

  view(accounts, ctx) {
    const shown = accounts.map((each) => panel(`${each.provider} / ${each.account}`, { id: `account-${each.provider}-${each.account}`, note: note(each), actions: actions(each, ctx) }, state(each), windows(each)));
    return [h("h1", {}, "Accounts"), shown.length ? shown : empty("There are no accounts yet.", "Start a worker with --provider and --account.")];
  },
};

function note(account) {
  return `${account.running} running, ${account.agents.length} ${account.agents.length === 1 ? "agent" : "agents"}`;
}

function actions(account, ctx) {
  if (account.state !== "refused") return null;
  const path = `/api/accounts/${encodeURIComponent(account.provider)}/${encodeURIComponent(account.account)}/renew`;
  return button("Credentials renewed", async () => {
    if (await attempt("The account is in use again.", () => post(path))) await ctx.reload();
  });
}

function state(account) {
  const until = account.state === "resting" ? [" until ", when(account.until)] : account.state === "refused" ? " until its credentials are renewed" : null;
  return h("p", {}, badge(label(account.state), TONES[account.state]), until, account.reason ? h("small", {}, ` ${account.reason}`) : null);
}

function amount(window) {
  if (window.unit === null) return "–";
  if (window.unit === "usd") return `${money(window.used)} of ${money(window.capacity)}`;
  return `${count(Math.round(window.used * 100) / 100)} of ${count(window.capacity)} ${window.unit}`;
}

function windows(account) {
  const columns = [
    { title: "Window", cell: (each) => [h("b", {}, label(each.name)), each.model ? h("small", {}, ` ${each.model}`) : null] },
    { title: "Used", cell: (each) => h("span", { class: "with-meter" }, meter(each.utilization, 1, "Used", each.utilization >= 0.8 ? "warm" : ""), ` ${percent(each.utilization, 1)} %`) },
    { title: "Amount", class: "end", cell: amount },
    { title: "Resets", class: "end", cell: (each) => when(each.resets_at) },
  ];
  return table(`Windows of ${account.account}`, columns, account.windows, { none: empty("There are no windows yet."), each: (each) => ({ key: `${each.name}-${each.model ?? ""}` }) });
}
