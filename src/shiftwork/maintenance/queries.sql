-- name: due_claims
-- Claims whose limits may have passed, with the newest heartbeat that covers them; skips those already examined.
select t.*, r.heartbeat_at as runtime_heartbeat_at, r.seen_at, a.status as agent_status from tasks t
left join runtimes r on r.workspace = t.workspace and r.id = t.runtime_id
left join agents a on a.workspace = t.workspace and a.id = t.agent_id
where t.status in ('claimed', 'running', 'validating') and t.lease_check_at <= :now
order by t.lease_check_at limit :count offset :skip

-- name: move_checks
-- rows items: id uuid, lease_check_at float
update tasks set lease_check_at = items.lease_check_at from {items}
where tasks.id = items.id and tasks.status in ('claimed', 'running', 'validating')

-- name: due_retries
select id from tasks where status = 'retrying' and available_at <= :now order by available_at limit :count {postgres: for update skip locked}

-- name: due_reranks
select id from tasks where status = 'ready' and rerank_at <= :now order by rerank_at limit :count {postgres: for update skip locked}

-- name: due_blocks
select id from tasks where block_check_at <= :now order by block_check_at limit :count {postgres: for update skip locked}

-- name: due_deadlines
-- Tasks that have not ended and whose deadline has passed since it was last announced; the conditions are the index's own.
select id from tasks where deadline is not null and (passed_deadline is null or passed_deadline <> deadline)
  and status in ('pending', 'waiting_approval', 'ready', 'claimed', 'running', 'validating', 'retrying') and deadline <= :now
order by deadline limit :count {postgres: for update skip locked}

-- name: pass_deadlines
-- For locked rows.
-- rows items: id uuid
update tasks set passed_deadline = deadline from {items} where tasks.id = items.id

-- name: due_expiries
-- Waiting tasks that have expired; the conditions are the index's own.
select id from tasks where expires_at is not null and status in ('pending', 'waiting_approval', 'ready', 'retrying')
  and expires_at <= :now order by expires_at limit :count {postgres: for update skip locked}

-- name: slow_dependencies
-- The dependencies that these tasks still wait for, with their states.
-- rows items: id uuid
select e.dependent, n.id, n.status from {items} join edges e on e.dependent = items.id and not e.satisfied
join tasks r on r.id = e.dependency join tasks n on n.id = coalesce(r.newest_id, r.id) order by e.dependent, n.id

-- name: missing_dependencies
-- Dependencies of these tasks that are not submitted yet.
-- rows items: id uuid
select e.dependent, e.dependency, n.name from {items} join edges e on e.dependent = items.id and not e.satisfied
join names n on n.task_id = e.dependency and not n.known

-- name: archivable
-- Tasks that ended long ago and that nothing waits for. A lineage of several rows stays: they refer to each other.
-- Ids are in the order of creation, so newer submissions are not even read.
select t.id from tasks t where t.id < :newest and t.workspace = :workspace and t.status in ('completed', 'cancelled') and t.finished_at <= :before
  and not exists (select 1 from edges e where e.dependency = t.root_id and not e.satisfied)
  and not exists (select 1 from tasks x where x.dag_id = t.dag_id and x.dag_id <> x.id and x.finished_at is null)
  and not exists (select 1 from tasks x where x.id = t.dag_id and x.finished_at is null)
  and t.newest_id is null and t.root_id = t.id
order by t.id limit :count {postgres: for update skip locked}

-- name: insert_archive
-- insert archive: id uuid, workspace text, external_id text, status text, type text, archived_at float, task json

-- name: prune_archive
delete from archive where id in (
  select a.id from archive a where a.workspace = :workspace and a.archived_at < :before order by a.archived_at limit :count
) returning id, task ->> 'idempotency_key' as key

-- name: prune_tombstones
delete from tombstones where task_id in (
  select s.task_id from tombstones s where s.workspace = :workspace and s.at < :before order by s.at limit :count
) returning task_id as id

-- name: add_pruned
insert into pruned (workspace, tasks) values (:workspace, :tasks)
on conflict (workspace) do update set tasks = pruned.tasks + excluded.tasks

-- name: prune_dags
-- DAGs that ended long ago and have no task left.
delete from dags where id in (
  select d.id from dags d where d.workspace = :workspace and d.status in ('completed', 'cancelled') and d.created_at < :before
    and d.finished_at < :before and not exists (select 1 from tasks t where t.dag_id = d.id and t.dag_id <> t.id)
    and not exists (select 1 from tasks t where t.id = d.id)
  order by d.created_at, d.id limit :count
) returning id

-- name: prune_events
-- Reads only the oldest. Events that the metrics and the counts of tasks have not counted yet stay.
delete from events where seq in (
  select e.seq from (select x.seq, x.at from events x order by x.seq limit :count) as e where e.at < :before
    and e.seq <= coalesce((select m.folded_to from meter_marks m where m.name = 'log'), e.seq)
    and e.seq <= coalesce((select m.read_to from count_marks m where m.name = 'tasks'), e.seq)
) returning seq

-- name: stranded
-- Tasks whose waiting count differs from their open edges and waits: there must never be any.
select t.id, t.status, t.waiting, (select count(*) from edges e where e.dependent = t.root_id and not e.satisfied)
  + (select count(*) from waits w where w.root_id = t.root_id and w.status = 'open') as open from tasks t
where t.status in ('pending', 'ready') and t.newest_id is null
  and t.waiting <> (select count(*) from edges e where e.dependent = t.root_id and not e.satisfied)
    + (select count(*) from waits w where w.root_id = t.root_id and w.status = 'open') limit :count

-- name: job_row
select * from duties where name = :name {postgres: for update skip locked}

-- name: add_job
insert into duties (name, due_at) values (:name, :due_at) on conflict do nothing

-- name: finish_job
update duties set due_at = :due_at, last_run_at = :now, took_sec = :took_sec, counts = :counts, runs = runs + 1 where name = :name

-- name: restored_at
-- When a snapshot or another queue was last copied into this database.
select last_run_at from duties where name = 'restore'

-- name: list_jobs
select * from duties order by name

-- name: look
-- Everything that maintenance polls several times a second: its jobs, and the earliest moment at which each has work. Each
-- moment is one probe of an index, however many tasks and workspaces there are.
select name, due_at, last_run_at, cast(null as {postgres: double precision}{sqlite: real}) as work_at, 'job' as kind from duties
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
select 'expiries', null, null, (select expires_at from tasks where expires_at is not null
  and status in ('pending', 'waiting_approval', 'ready', 'retrying') order by expires_at limit 1), 'work'
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
  + cast(:serial_idle as {postgres: double precision}{sqlite: real}), 'work'
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
select 'search', null, null, case when coalesce((select max(seq) from events), 0) > coalesce((select read_to from search_marks
  where name = 'tasks'), 0) then 0 end, 'work'
union all
select 'counts', null, null, case when not exists (select 1 from count_marks where name = 'tasks' and whole)
  or exists (select 1 from count_changes)
  or coalesce((select max(seq) from events), 0) > (select read_to from count_marks where name = 'tasks') + 1000 then 0 end, 'work'
union all
select 'presence', null, null, case when exists (select 1 from runtimes where presence is not null and status = 'active')
  then 0 end, 'work'

-- name: note_idle
-- Records jobs that were checked and had no work.
-- rows items: name text, due_at float
insert into duties (name, due_at, last_run_at, took_sec, runs)
select name, due_at, cast(:now as {postgres: double precision}{sqlite: real}), 0, 1 from {items} where true
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

-- name: claims_of_the_future
-- After the clock went back: claims and heartbeats later than now count from now.
update tasks set lease_check_at = :now,
  ack_by = ack_by - case when claimed_at > :now then claimed_at - :now else 0 end,
  lease_until = lease_until - case when claimed_at > :now then claimed_at - :now else 0 end,
  run_until = run_until - case when claimed_at > :now then claimed_at - :now when started_at > :now then started_at - :now else 0 end,
  heartbeat_at = case when heartbeat_at > :now then :now else heartbeat_at end,
  started_at = case when started_at > :now then :now else started_at end,
  claimed_at = case when claimed_at > :now then :now else claimed_at end,
  ordered_at = case when ordered_at > :now then :now else ordered_at end
where status in ('claimed', 'running', 'validating') and (claimed_at > :now or started_at > :now or heartbeat_at > :now)
returning id

-- name: retries_of_the_future
update tasks set available_at = available_at - (updated_at - :now), updated_at = :now,
  ordered_at = case when ordered_at > :now then ordered_at - (updated_at - :now) else ordered_at end
where status = 'retrying' and available_at > :now and updated_at > :now returning id

-- name: tasks_of_the_future
-- Newer tasks would precede them for as long as the clock was ahead. Start times are kept.
update tasks set created_at = :now, ordered_at = case when due_at is null then :now else ordered_at end,
  rerank_at = case when status = 'ready' then :now else rerank_at end
where id >= :newest and created_at > :now and finished_at is null

-- name: places_of_the_future
-- The same for older tasks that returned to their lanes later than now.
update tasks set ordered_at = :now, due_at = case when due_at > :now then :now else due_at end, rerank_at = :now
where status = 'ready' and hold is null and ordered_at > :now

-- name: ranks_of_the_future
update tasks set rerank_at = :now where status = 'ready' and rerank_at > :now and updated_at > :now

-- name: blocks_of_the_future
update tasks set block_check_at = block_check_at - (created_at - :now) where block_check_at > :now and created_at > :now

-- name: agents_of_the_future
update agents set last_heartbeat = :now where last_heartbeat > :now

-- name: runtimes_of_the_future
update runtimes set seen_at = case when seen_at > :now then :now else seen_at end,
  heartbeat_at = case when heartbeat_at > :now then :now else heartbeat_at end
where seen_at > :now or heartbeat_at > :now

-- name: waits_of_the_future
-- Except timers, which wait for a clock time.
update waits set until = until - (began_at - :now), began_at = :now where status = 'open' and kind <> 'time' and began_at > :now

-- name: approvals_of_the_future
update approvals set expires_at = expires_at - (requested_at - :now), requested_at = :now
where status = 'open' and requested_at > :now

-- name: gates_of_the_future
update gates set until = until - (closed_at - :now), closed_at = :now where closed_at > :now

-- name: breakers_of_the_future
update breakers set half_open_at = half_open_at - (opened_at - :now), probe_until = probe_until - (opened_at - :now),
  opened_at = :now where opened_at > :now

-- name: serials_of_the_future
update serials set idle_since = :now where idle_since > :now

-- name: deliveries_of_the_future
update deliveries set next_at = next_at - (created_at - :now), give_up_at = give_up_at - (created_at - :now), created_at = :now
where status = 'pending' and created_at > :now

-- name: sinks_of_the_future
update sinks set rests_until = :now where rests_until > :now

-- name: jobs_of_the_future
update duties set due_at = :now, last_run_at = :now where last_run_at > :now and name <> 'restore'
