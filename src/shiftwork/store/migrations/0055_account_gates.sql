-- An account whose window is used up has a closed gate of its own kind. SQLite changes a check by a new table.
-- locks: there are few gates, and the new check allows all that the old one did.
{pg: alter table gates drop constraint gates_kind_check, add constraint gates_kind_check
  check (kind in ('pause', 'breaker', 'cooldown', 'limit', 'account', 'slowdown'))};
{lite: create table gates_of_accounts (
  workspace text not null,
  scope text not null,
  kind text not null check (kind in ('pause', 'breaker', 'cooldown', 'limit', 'account', 'slowdown')),
  agent_id text not null default '',
  reason text,
  closed_at <float> not null,
  closed_by text not null,
  until <float>,
  told <boolean> not null default false,
  primary key (workspace, scope, kind, agent_id)
) strict};
{lite: insert into gates_of_accounts (workspace, scope, kind, agent_id, reason, closed_at, closed_by, until, told)
  select workspace, scope, kind, agent_id, reason, closed_at, closed_by, until, told from gates};
{lite: drop table gates};
{lite: alter table gates_of_accounts rename to gates};
