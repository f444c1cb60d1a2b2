-- What people and programs say to the holder of a task, by the root of its lineage: every later attempt reads it again.
-- An open one goes out with heartbeats; it is closed when a holder has acknowledged it or the task has ended.
create table instructions (
  root_id <uuid> not null,
  seq <int> not null,
  workspace text not null,
  text text not null,
  sent_at <float> not null,
  sent_by text not null,
  open <boolean> not null default true,
  delivered_at <float>,
  fence <bigint>,
  acknowledged_at <float>,
  primary key (root_id, seq)
){lite: strict};
create index idx_instructions_open on instructions (workspace, root_id) where open;
