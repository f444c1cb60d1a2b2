-- Money above the agents' own: what tasks may cost together, what each attempt may cost of it, and what was spent.

-- The most that a whole DAG, a task with all it spawns, or what a workspace claims on one day (UTC) may cost. What running
-- attempts may still spend is granted, what was spent is booked; a ceiling of null only counts. `told` is the last share
-- that was warned of; `closed_at` says that tasks under it may be held back; `counted_to` is the last task counted in while
-- a DAG that exists gets a budget.
create table budgets (
  id <uuid> primary key,
  workspace text not null,
  kind text not null check (kind in ('dag', 'tree', 'day')),
  owner text not null,
  parent_id <uuid>,
  ceiling <bigint>,
  granted <bigint> not null default 0 check (granted >= 0),
  spent <bigint> not null default 0 check (spent >= 0),
  told <int> not null default 0,
  closed_at <float>,
  counted_to <uuid>,
  unique (workspace, kind, owner)
){pg: with (fillfactor = 50)}{lite: strict};
create index idx_budgets_parent on budgets (parent_id) where parent_id is not null;
create index idx_budgets_closed on budgets (id) where closed_at is not null;
create index idx_budgets_counting on budgets (id) where counted_to is not null;

-- Tasks that an exhausted budget holds back, and those it could.
create index idx_tasks_budget on tasks (budget_id) where budget_id is not null and status = 'ready' and hold is null;
create index idx_tasks_budget_held on tasks (budget_id, rank, ordered_at, id) where hold = 'budget';

-- The budgets an attempt is booked to, and what is set aside for it there: until it ends or, when it was lost, reports.
create table charges (
  task_id <uuid> not null,
  fence <bigint> not null,
  budget_id <uuid> not null,
  granted <bigint> not null check (granted >= 0),
  primary key (task_id, fence, budget_id)
){lite: strict};

-- What each attempt has cost, by model ('' where nobody said which). Stays when the task goes: the money is spent.
create table costs (
  task_id <uuid> not null,
  fence <bigint> not null,
  model text not null,
  workspace text not null,
  type text not null,
  dag_id <uuid> not null,
  agent_id text not null,
  claimed_at <float> not null,
  cost <bigint> not null,
  tokens_in <bigint> not null,
  tokens_out <bigint> not null,
  primary key (task_id, fence, model)
){lite: strict};
create index idx_costs_workspace on costs (workspace, claimed_at);
