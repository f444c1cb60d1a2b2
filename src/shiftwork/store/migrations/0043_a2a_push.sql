-- Where clients of the A2A server are notified of a task, and how far each has been notified.
create table a2a_push_configs (
  workspace text not null,
  task_id <uuid> not null,
  id text not null,
  url text not null,
  secrets text,
  created_at <float> not null,
  sent_version <bigint> not null,
  attempts <bigint> not null,
  next_at <float> not null,
  ended_at <float>,
  error text,
  primary key (workspace, task_id, id)
){lite: strict};

create index idx_a2a_push_due on a2a_push_configs (next_at) where ended_at is null;
