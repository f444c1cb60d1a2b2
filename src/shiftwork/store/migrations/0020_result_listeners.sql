-- Processes in which someone waits for the end of a task: while there is one, a completed task is announced to others.
create table result_listeners (
  id text primary key,
  until <float> not null
){lite: strict};
