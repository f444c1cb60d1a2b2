-- name: due_claims
-- Claims whose limits may have passed, with the newest beat that covered them; without the first, which were looked at.
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
select id from tasks where status = 'retrying' and available_at <= :now order by available_at limit :count {pg: for update skip locked}

-- name: due_reranks
select id from tasks where status = 'ready' and rerank_at <= :now order by rerank_at limit :count {pg: for update skip locked}

-- name: due_blocks
select id from tasks where block_check_at <= :now order by block_check_at limit :count {pg: for update skip locked}

-- name: due_deadlines
-- Tasks that have not ended and whose deadline has passed since it was last announced; the conditions are the index's own.
select id from tasks where deadline is not null and (passed_deadline is null or passed_deadline <> deadline)
  and status in ('pending', 'waiting_approval', 'ready', 'claimed', 'running', 'validating', 'retrying') and deadline <= :now
order by deadline limit :count {pg: for update skip locked}

-- name: pass_deadlines
-- For rows that are locked.
-- rows items: id uuid
update tasks set passed_deadline = deadline from {items} where tasks.id = items.id

-- name: slow_dependencies
-- The dependencies that these tasks still wait for, as they stand.
-- rows items: id uuid
select e.dependent, n.id, n.status from {items} join edges e on e.dependent = items.id and not e.satisfied
join tasks r on r.id = e.dependency join tasks n on n.id = coalesce(r.newest_id, r.id) order by e.dependent, n.id

-- name: missing_dependencies
-- Dependencies of these tasks that no task has come for yet.
-- rows items: id uuid
select e.dependent, e.dependency, n.name from {items} join edges e on e.dependent = items.id and not e.satisfied
join names n on n.task_id = e.dependency and not n.known

-- name: archivable
-- Finished long ago, and nobody waits for them any more. A lineage of several rows stays: they answer for each other.
select t.id from tasks t where t.workspace = :workspace and t.status in ('completed', 'cancelled') and t.finished_at <= :before
  and not exists (select 1 from edges e where e.dependency = t.root_id and not e.satisfied)
  and not exists (select 1 from tasks x where x.dag_id = t.dag_id and x.dag_id <> x.id and x.finished_at is null)
  and not exists (select 1 from tasks x where x.id = t.dag_id and x.finished_at is null)
  and t.newest_id is null and t.root_id = t.id
order by t.id limit :count {pg: for update skip locked}

-- name: insert_archive
-- insert archive: id uuid, workspace text, external_id text, status text, type text, archived_at float, task json

-- name: stranded
-- Tasks whose waiting count and open edges and waits disagree: must always be none.
select t.id, t.status, t.waiting, (select count(*) from edges e where e.dependent = t.root_id and not e.satisfied)
  + (select count(*) from waits w where w.root_id = t.root_id and w.status = 'open') as open from tasks t
where t.status in ('pending', 'ready') and t.newest_id is null
  and t.waiting <> (select count(*) from edges e where e.dependent = t.root_id and not e.satisfied)
    + (select count(*) from waits w where w.root_id = t.root_id and w.status = 'open') limit :count

-- name: duty_row
select * from duties where name = :name {pg: for update skip locked}

-- name: add_duty
insert into duties (name, due_at) values (:name, :due_at) on conflict do nothing

-- name: finish_duty
update duties set due_at = :due_at, last_run_at = :now, took_sec = :took_sec, counts = :counts, runs = runs + 1 where name = :name

-- name: restored_at
-- When a snapshot or another queue was written into this database.
select last_run_at from duties where name = 'restore'

-- name: list_duties
select * from duties order by name

-- name: ready_lane_count
select count(*) as ready from tasks where lane = :lane and status = 'ready' and hold is null
