-- Ids of submissions that turned out to be a task that existed already: each answers for that task, wherever an id is taken.
create table aliases (
  id <uuid> primary key,
  workspace text not null,
  task_id <uuid> not null
){lite: strict};
create index idx_aliases_task on aliases (task_id);
