-- name: look
-- All that maintenance must know several times a second, in one statement: its jobs, and for those that wait for a moment
-- the earliest one. Each is one probe of an index, however many tasks and workspaces there are.
select name, due_at, last_run_at, cast(null as {pg: double precision}{lite: real}) as work_at, 'job' as kind from duties
union all
select 'reclaim', null, null, (select lease_check_at from tasks
  where status in ('claimed', 'running', 'validating') and lease_check_at is not null order by lease_check_at limit 1), 'work'
union all
select 'promote', null, null, (select available_at from tasks where status = 'retrying' and available_at is not null
  order by available_at limit 1), 'work'
union all
select 'rerank', null, null, (select rerank_at from tasks where status = 'ready' and rerank_at is not null
  order by rerank_at limit 1), 'work'
union all
select 'deadlines', null, null, (select deadline from tasks where deadline is not null
  and (passed_deadline is null or passed_deadline <> deadline)
  and status in ('pending', 'waiting_approval', 'ready', 'claimed', 'running', 'validating', 'retrying')
  order by deadline limit 1), 'work'
union all
select 'dependencies', null, null, (select block_check_at from tasks where block_check_at is not null
  order by block_check_at limit 1), 'work'
union all
select 'waits', null, null, case when exists (select 1 from signals where not told) then 0 else
  (select until from waits where status = 'open' and until is not null order by until limit 1) end, 'work'
union all
select 'approvals', null, null, (select expires_at from approvals where status = 'open' and expires_at is not null
  order by expires_at limit 1), 'work'
union all
select 'gates', null, null, (select min(until) from gates where until is not null and not told), 'work'
union all
select 'serials', null, null, (select idle_since from serials where idle_since is not null order by idle_since limit 1)
  + cast(:serial_idle as {pg: double precision}{lite: real}), 'work'
union all
select 'triggers', null, null, case when exists (select 1 from triggers where kind in ('dag', 'event') and paused_at is null)
    and coalesce((select max(seq) from events), 0) > coalesce((select max(seq) from trigger_cursor), 0) then 0
  else (select next_at from triggers where next_at is not null order by next_at limit 1) end, 'work'
union all
select 'budgets', null, null, case when exists (select 1 from budgets where closed_at is not null)
  or exists (select 1 from budgets where counted_to is not null) then 0 end, 'work'
union all
select 'notifications', null, null, case when exists (select 1 from sinks) then 0 end, 'work'
union all
select 'presence', null, null, case when exists (select 1 from runtimes where presence is not null and status = 'active')
  then 0 end, 'work'

-- name: note_idle
-- Jobs that were looked after and had nothing to do.
-- rows items: name text, due_at float
insert into duties (name, due_at, last_run_at, took_sec, runs)
select name, due_at, cast(:now as {pg: double precision}{lite: real}), 0, 1 from {items} where true
on conflict (name) do update set due_at = excluded.due_at, last_run_at = excluded.last_run_at, took_sec = 0, counts = null,
  runs = duties.runs + 1

-- name: beat_process
insert into duties (name, due_at, last_run_at, took_sec, counts, runs) values (:name, :due_at, :now, :took, :counts, 1)
on conflict (name) do update set due_at = excluded.due_at, last_run_at = excluded.last_run_at, took_sec = excluded.took_sec,
  counts = excluded.counts, runs = duties.runs + 1

-- name: forget_processes
delete from duties where name like :prefix || '%' and last_run_at < :before

-- name: leave_process
delete from duties where name = :name
