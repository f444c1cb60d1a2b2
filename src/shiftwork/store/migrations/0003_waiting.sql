-- What a task waits for besides other tasks, and what it needs a person for.

-- A wait that a running task began: named by its task, kept with its answer. Whose lineage it is says `root_id`.
create table waits (
  root_id <uuid> not null,
  name text not null,
  task_id <uuid> not null,
  workspace text not null,
  kind text not null check (kind in ('time', 'signal', 'person')),
  status text not null check (status in ('open', 'met', 'expired')),
  signal text,
  question text,
  schema <json>,
  until <float>,
  began_at <float> not null,
  ended_at <float>,
  value <json>,
  answered_by text,
  signal_seq <bigint>,
  primary key (root_id, name),
  check ((kind = 'signal') = (signal is not null)),
  check ((kind = 'person') = (question is not null)),
  check ((status = 'open') = (ended_at is null))
){lite: strict};
create index idx_waits_due on waits (until) where status = 'open' and until is not null;
create index idx_waits_signal on waits (workspace, signal, root_id) where status = 'open' and signal is not null;
create index idx_waits_questions on waits (workspace, task_id) where status = 'open' and question is not null;

-- What was sent to whoever waits for it, kept for those who begin to wait later. `told` is false while tasks that waited
-- when it came have yet to be freed.
create table signals (
  seq {pg: bigint generated always as identity primary key}{lite: integer primary key autoincrement},
  at <float> not null,
  workspace text not null,
  name text not null,
  root_id <uuid>,
  actor text not null,
  data <json>,
  told <boolean> not null default false
){lite: strict};
create index idx_signals_name on signals (workspace, name, at, seq);
create index idx_signals_at on signals (at);
create index idx_signals_untold on signals (seq) where not told;

-- A person's word on one revision of a task's work, asked for by a guard.
create table approvals (
  task_id <uuid> not null,
  revision text not null,
  root_id <uuid> not null,
  workspace text not null,
  rule <json> not null,
  status text not null check (status in ('open', 'approved', 'rejected', 'withdrawn')),
  requested_at <float> not null,
  expires_at <float>,
  decided_at <float>,
  decided_by text,
  note text,
  primary key (task_id, revision)
){lite: strict};
create unique index idx_approvals_open on approvals (workspace, task_id) where status = 'open';
create index idx_approvals_due on approvals (expires_at) where status = 'open' and expires_at is not null;
create index idx_approvals_granted on approvals (root_id, revision) where status = 'approved';
