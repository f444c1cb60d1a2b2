-- Circuit breakers per type; a type without a row is closed and has no failures.
create table breakers (
  workspace text not null,
  type text not null,
  state text not null default 'closed' check (state in ('closed', 'open', 'half-open')),
  failures <int> not null default 0 check (failures >= 0),
  last_failure <float>,
  opened_at <float>,
  half_open_at <float>,
  probe_task <uuid>,
  probe_fence <bigint>,
  probe_until <float>,
  primary key (workspace, type),
  check ((probe_task is null) = (probe_fence is null) and (probe_task is null) = (probe_until is null)),
  check (probe_task is null or state = 'half-open')
){lite: strict};
create index idx_breakers_failing on breakers (workspace) where failures > 0 or state <> 'closed';

-- How much may be used of a provider, account, model or type. `cells` counts what the window holds.
create table limits (
  workspace text not null,
  key text not null,
  terms <json> not null,
  held <int> not null default 0 check (held >= 0),
  cells <json> not null,
  set_at <float> not null,
  set_by text not null,
  primary key (workspace, key)
){lite: strict};

-- What a live claim has taken of a limit; gone with the claim.
create table limit_claims (
  task_id <uuid> not null,
  fence <bigint> not null,
  workspace text not null,
  key text not null,
  at <float> not null,
  tokens <bigint> not null,
  used_before <bigint> not null,
  primary key (task_id, fence, key)
){lite: strict};
create index idx_limit_claims_key on limit_claims (workspace, key);

-- The model that a task's last claim was handed out with, where the task says which it may have.
create table claim_models (
  task_id <uuid> primary key,
  fence <bigint> not null,
  model text not null
){lite: strict};
