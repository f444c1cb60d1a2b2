-- The log of a task is what its message events hold; other events are not in this index, and cost nothing here.
create index idx_events_messages on events (task_id, seq) where verb = 'message';

-- How many characters of a task's log there are, so that there are never too many.
create table log_sizes (
  task_id <uuid> primary key,
  size <bigint> not null
){lite: strict};
