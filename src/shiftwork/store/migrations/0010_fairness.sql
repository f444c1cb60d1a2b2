-- The shares of a workspace in the order in which they were last served, the longest ago first.
create table turns (
  workspace text primary key,
  shares <json> not null
){lite: strict};

-- Keys of which one task runs at a time, and the claim that has each; one that nobody has stays while tasks wait for it.
create table serials (
  workspace text not null,
  key text not null,
  task_id <uuid>,
  fence <bigint>,
  idle_since <float>,
  primary key (workspace, key),
  check ((task_id is null) = (fence is null) and (task_id is null) = (idle_since is not null))
){lite: strict};
create index idx_serials_task on serials (task_id);
create index idx_serials_idle on serials (idle_since) where idle_since is not null;

-- Ready tasks that are held back while another of their key runs, with their place, so that the best comes next.
create table serial_holds (
  task_id <uuid> primary key,
  workspace text not null,
  key text not null,
  lane <int> not null,
  rank <float> not null,
  ordered_at <float> not null
){lite: strict};
create index idx_serial_holds_place on serial_holds (workspace, key, lane, rank, ordered_at, task_id);

-- Running tasks that were asked to yield, each for one urgent task.
create table yields (
  urgent_id <uuid> primary key,
  workspace text not null,
  task_id <uuid> not null,
  fence <bigint> not null,
  asked_at <float> not null
){lite: strict};
create index idx_yields_task on yields (task_id);
