-- No attempt at a task begins after this time. Only what waits for one is looked for.
alter table tasks add column expires_at <float>;
create index idx_tasks_expiry on tasks (expires_at) where expires_at is not null
  and status in ('pending', 'waiting_approval', 'ready', 'retrying');

-- Tasks that wait for their time, whose wait has no name, to be counted.
create index idx_waits_scheduled on waits (workspace, until) where status = 'open' and name = '';
