-- What became of the conversations that agents pinned to the tasks of a lineage. The pointer itself stands on the task.
create table sessions (
  root_id <uuid> not null,
  session_id text not null,
  -- The attempt that pinned it first, and whether that one had been handed a session to go on from.
  task_id <uuid> not null,
  fence <bigint> not null,
  resumed <boolean> not null,
  failed_resumes <int> not null check (failed_resumes >= 0),
  retired_at <float>,
  primary key (root_id, session_id)
){lite: strict};
