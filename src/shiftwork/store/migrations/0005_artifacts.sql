-- Content by its hash, each workspace its own. The bytes lie outside of the database, at `place`, which is never used twice.
create table artifacts (
  workspace text not null,
  hash text not null,
  size <bigint> not null check (size >= 0),
  media_type text not null,
  place text not null unique,
  digests text not null,
  created_at <float> not null,
  created_by text not null,
  idle_since <float>,
  primary key (workspace, hash)
){lite: strict};
-- Null once a task refers to it: only what nobody wants is looked at by its age.
create index idx_artifacts_idle on artifacts (workspace, idle_since) where idle_since is not null;

-- What keeps an artifact: a task's input, what was made or handed in under it, the result of a step.
create table artifact_uses (
  task_id <uuid> not null,
  role text not null check (role in ('input', 'made', 'result', 'step')),
  hash text not null,
  name text not null,
  workspace text not null,
  at <float> not null,
  actor text not null,
  primary key (task_id, role, hash, name)
){lite: strict};
create index idx_artifact_uses_hash on artifact_uses (workspace, hash);

-- By which this queue's places are known from those of others in the same folder or bucket.
create table artifact_mark (
  id <int> primary key check (id = 1),
  mark text not null
){lite: strict};

-- Places whose rows are gone and whose bytes are still to be removed, by whoever can reach them.
create table artifact_litter (
  place text primary key,
  at <float> not null
){lite: strict};
