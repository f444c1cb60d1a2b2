-- Named results inside a task that outlive an attempt, and outside actions that happen once.

-- Without `done_at` it is in flight, under the claim whose fence stands here. `place` is its number in the task. A result
-- that is too large for a row lies in an artifact.
create table steps (
  task_id <uuid> not null,
  name text not null,
  place <int> not null,
  fence <bigint> not null,
  began_at <float> not null,
  done_at <float>,
  result <json>,
  artifact text,
  cost <bigint> not null default 0,
  tokens_in <bigint> not null default 0,
  tokens_out <bigint> not null default 0,
  primary key (task_id, name),
  check ((done_at is null) = (result is null and artifact is null))
){lite: strict};
create unique index idx_steps_place on steps (task_id, place);

-- The intent is written before the action, `done_at` after it: between the two nobody but the outside knows. `begun_by` is
-- the token of the claim that wrote the intent; `task_id` and `fence` are of the one that must find out how it ended.
create table effects (
  workspace text not null,
  key text not null,
  task_id <uuid> not null,
  fence <bigint> not null,
  begun_by text not null,
  began_at <float> not null,
  done_at <float>,
  result <json>,
  resolved_by text,
  primary key (workspace, key),
  check (done_at is not null or (result is null and resolved_by is null))
){lite: strict};
create index idx_effects_task on effects (task_id, key);
create index idx_effects_open on effects (workspace, key) where done_at is null;
