-- What starts work by itself, and what came of it.

-- `source` says what it waits for, `template` what it creates. A schedule fires at `next_at` for `tick_at`, which is earlier
-- by its jitter. The secret of a hook is needed to check signatures; it is shown to nobody. `after_seq` is the last event
-- that came before it; `refused_at` is when a refused delivery was last told of, `looked_at` when its files were first seen.
create table triggers (
  id <uuid> primary key,
  workspace text not null,
  name text not null,
  kind text not null check (kind in ('cron', 'hook', 'file', 'dag', 'event')),
  source <json> not null,
  template <json> not null,
  overlap text not null check (overlap in ('allow', 'skip', 'replace')),
  secret text,
  tick_at <float>,
  next_at <float>,
  after_seq <bigint> not null,
  refused_at <float>,
  looked_at <float>,
  paused_at <float>,
  fired <bigint> not null default 0,
  last_fired_at <float>,
  created_at <float> not null,
  created_by text not null,
  updated_at <float> not null,
  unique (workspace, name),
  check ((kind = 'hook') = (secret is not null)),
  check ((tick_at is null) = (next_at is null)),
  check (next_at is null or (kind = 'cron' and paused_at is null))
){lite: strict};
create index idx_triggers_due on triggers (next_at) where next_at is not null;
create index idx_triggers_following on triggers (after_seq) where kind in ('dag', 'event') and paused_at is null;
create index idx_triggers_files on triggers (id) where kind = 'file' and paused_at is null;

-- For one key a trigger fires once. `depth` counts the firings whose work led to this one.
create table firings (
  trigger_id <uuid> not null,
  key text not null,
  at <float> not null,
  outcome text not null check (outcome in ('fired', 'skipped')),
  reason text,
  tasks <json> not null,
  dag_id <uuid>,
  depth <int> not null,
  primary key (trigger_id, key)
){lite: strict};
create index idx_firings_recent on firings (trigger_id, at);
create index idx_firings_dag on firings (dag_id) where dag_id is not null;
create index idx_firings_at on firings (at);

-- How far triggers have read the log of events: one row.
create table trigger_cursor (
  one <int> primary key check (one = 1),
  seq <bigint> not null
){lite: strict};

-- The files of a trigger as they were last seen. A file that was removed has no hash.
create table watched_files (
  trigger_id <uuid> not null,
  path text not null,
  sha256 text,
  primary key (trigger_id, path)
){lite: strict};
