-- How many finished tasks there are, so that no one has to read them to count them. A job adds the ends that the event log
-- tells; anyone who asks adds what the log and `count_changes` say since. Verbs that end tasks pay nothing for it.
create table count_sums (
  workspace text not null,
  place text not null check (place in ('tasks', 'archive', 'tombstones')),
  type text not null,
  status text not null,
  tier <int> not null,
  total <bigint> not null,
  primary key (workspace, place, type, status, tier)
){lite: strict};

-- What the log does not tell: finished tasks that were removed, and what came into the archive or left it. `seq` is the last
-- event there was: once the log is counted so far, the row is added to the sums and removed. Until then it says of what type
-- and priority a removed task was whose end is not counted yet.
create table count_changes (
  number {pg: bigint generated always as identity primary key}{lite: integer primary key autoincrement},
  seq <bigint> not null,
  workspace text not null,
  place text not null,
  task_id <uuid>,
  type text not null,
  status text not null,
  priority <float>,
  total <bigint> not null
){lite: strict};
create index idx_count_changes_task on count_changes (task_id) where task_id is not null;

-- How far the log is counted. Sums are right while `whole`; `generation` moves when rows came that no event tells of.
create table count_marks (
  name text primary key,
  read_to <bigint> not null,
  whole <boolean> not null,
  generation <bigint> not null default 0
){lite: strict};

{pg: create function count_removed_tasks() returns trigger language plpgsql set search_path from current as $$
begin
  insert into count_changes (seq, workspace, place, task_id, type, status, priority, total)
  select coalesce((select max(seq) from events), 0), workspace, 'tasks', id, type, status, priority, -1
  from rows_moved where finished_at is not null;
  return null;
end $$};
{pg: create trigger count_removed after delete on tasks referencing old table as rows_moved
  for each statement execute function count_removed_tasks()};
{lite: create trigger count_removed after delete on tasks when old.finished_at is not null begin
  insert into count_changes (seq, workspace, place, task_id, type, status, priority, total)
  values (coalesce((select max(seq) from events), 0), old.workspace, 'tasks', old.id, old.type, old.status, old.priority, -1); end};

{pg: create function count_archived_tasks() returns trigger language plpgsql set search_path from current as $$
begin
  insert into count_changes (seq, workspace, place, type, status, total)
  select coalesce((select max(seq) from events), 0), workspace, 'archive', '', status, case tg_op when 'INSERT' then 1 else -1 end * count(*)
  from rows_moved group by workspace, status;
  return null;
end $$};
{pg: create function count_tombstones() returns trigger language plpgsql set search_path from current as $$
begin
  insert into count_changes (seq, workspace, place, type, status, total)
  select coalesce((select max(seq) from events), 0), workspace, 'tombstones', '', '', case tg_op when 'INSERT' then 1 else -1 end * count(*)
  from rows_moved group by workspace;
  return null;
end $$};
{pg: create trigger count_added after insert on archive referencing new table as rows_moved
  for each statement execute function count_archived_tasks()};
{pg: create trigger count_removed after delete on archive referencing old table as rows_moved
  for each statement execute function count_archived_tasks()};
{pg: create trigger count_added after insert on tombstones referencing new table as rows_moved
  for each statement execute function count_tombstones()};
{pg: create trigger count_removed after delete on tombstones referencing old table as rows_moved
  for each statement execute function count_tombstones()};
{lite: create trigger count_archived after insert on archive begin
  insert into count_changes (seq, workspace, place, type, status, total)
  values (coalesce((select max(seq) from events), 0), new.workspace, 'archive', '', new.status, 1); end};
{lite: create trigger count_unarchived after delete on archive begin
  insert into count_changes (seq, workspace, place, type, status, total)
  values (coalesce((select max(seq) from events), 0), old.workspace, 'archive', '', old.status, -1); end};
{lite: create trigger count_marked after insert on tombstones begin
  insert into count_changes (seq, workspace, place, type, status, total)
  values (coalesce((select max(seq) from events), 0), new.workspace, 'tombstones', '', '', 1); end};
{lite: create trigger count_unmarked after delete on tombstones begin
  insert into count_changes (seq, workspace, place, type, status, total)
  values (coalesce((select max(seq) from events), 0), old.workspace, 'tombstones', '', '', -1); end};

-- What has not ended, is under no claim and may not be claimed: it is counted and listed by reading it. Tasks that may be
-- claimed, and those under a claim, have indexes.
create index idx_tasks_waiting on tasks (workspace, id) where status in ('pending', 'waiting_approval', 'retrying', 'failed',
  'dead_lettered') or (status = 'ready' and hold is not null);
