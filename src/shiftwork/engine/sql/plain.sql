-- Statements for PostgreSQL that handle plain tasks and agents in one or two round trips.

-- part: batch
-- The events of {items}, numbered.
select array_agg(items.task_id) as task_ids, array_agg(items.fence) as fences, array_agg(items.seconds) as spans,
  array_agg(nextval('events_seq_seq'::regclass)) as seqs, cast(count(*) as int) as size

-- part: numbered
numbered as (
  select batch.*, case when batch.size > 1 and exists (select 1 from migrations m where m.number = 49) then batch.seqs[batch.size] - batch.seqs[1]
    else 4096 end as spread
  from batch where batch.size > 0
)

-- part: batch_rows
-- One row, stored under the number of its last event. Events get a row each if there is only one, if concurrent writers took
-- so many numbers that these lie far apart, or while older programs may read the log (until migration 49 says that none does).
select n.seqs[n.size], cast(:at as double precision), :workspace, cast(null as uuid), cast(null as uuid), :verb, :path, :actor, :request_id,
  cast(null as bigint), cast(:data as json), cast(:type as text), cast(null as double precision), n.task_ids, n.fences, n.spans,
  case when n.spread >= n.size then n.seqs end, n.size
from numbered n where n.spread < 4096
union all
select e.seq, cast(:at as double precision), :workspace, e.task_id, e.task_id, :verb, :path, :actor, :request_id, e.fence, cast(:data as json),
  :type, e.seconds, null, null, null, null, null
from numbered n cross join lateral unnest(n.seqs, n.task_ids, n.fences, n.spans) as e(seq, task_id, fence, seconds) where n.spread >= 4096

-- name: insert_event_batch (postgres)
-- rows items: task_id uuid, fence bigint, seconds float
insert into events (seq, at, workspace, task_id, dag_id, verb, path, actor, request_id, fence, data, type, seconds, task_ids, fences, spans, seqs, size)
overriding system value
with batch as materialized ({batch} from {items}), {numbered} {batch_rows}

-- name: log_completed (postgres)
-- The events of tasks that `complete_plain_many` has ended, unless one of them has dependents or a DAG with others. Runs once
-- the tasks are locked, as does `ties_of`.
-- rows items: task_id uuid, fence bigint, seconds float
with given as materialized (
  select items.task_id, items.fence, items.seconds from {items}
), ties as materialized (
  select exists (select 1 from given join edges e on e.dependency = given.task_id where not e.satisfied) as awaited,
    exists (select 1 from given join dags d on d.id = given.task_id) as joined
), batch as materialized ({batch} from given as items where not (select ties.awaited or ties.joined from ties)), {numbered}, logged as (
  insert into events (seq, at, workspace, task_id, dag_id, verb, path, actor, request_id, fence, data, type, seconds, task_ids, fences, spans, seqs, size)
  overriding system value {batch_rows}
)
select ties.awaited, ties.joined from ties

-- part: as_completed
-- The attempt's grant and cost stay on the row, as in `complete_tasks`.
status = 'completed', last_agent_id = agent_id, last_runtime_id = runtime_id, agent_id = null,
  runtime_id = null, ack_by = null, run_until = null, lease_until = null, lease_check_at = null,
  cost = cost + attempt_cost, hold = null, failure_reason = null, version = version + 1, updated_at = :now,
  finished_at = :now

-- part: ends_alone
-- A task whose end concerns no validation, DAG, budget, key, breaker, limit or serial key, and that the caller may end.
tasks.validation is null and tasks.dag_id = tasks.id and tasks.root_id = tasks.id and not tasks.charged
  and tasks.idempotency_key is null
  and (cast(:workspace as text) is null or tasks.workspace = :workspace)
  and (cast(:holder as text) is null or tasks.holder = :holder)
  and not exists (select 1 from breakers k where k.failures > 0 or k.state <> 'closed')
  and not exists (select 1 from limit_claims) and not exists (select 1 from serials)

-- name: complete_plain_many (postgres)
-- Completes plain tasks and writes their attempts. Answers one row by workspace, agent and type, so that no task need be
-- read; lists of ids are texts, which `log_completed` takes unchanged. `complete_tasks` is for all other tasks, and for
-- times when a breaker, a limit or a serial key must know of ends.
-- rows items: id uuid, fence bigint, result json
with ended as (
  update tasks set {as_completed}
  from {items} where tasks.id = items.id and tasks.fence = items.fence and tasks.status || '' = 'running'
    and {ends_alone}
  returning tasks.id, tasks.fence, workspace, type, round, last_agent_id, last_runtime_id, claimed_at, started_at, attempt_cost,
    items.result
), written as (
  insert into attempts (task_id, fence, round, agent_id, runtime_id, claimed_at, started_at, ended_at, outcome, counted, cost,
    granted, result)
  select id, fence, round, last_agent_id, last_runtime_id, claimed_at, started_at, cast(:now as double precision), 'completed', false,
    attempt_cost, 0, result
  from ended
)
select workspace, last_agent_id as agent_id, type, cast(count(*) as int) as size, cast(array_agg(id) as text) as ids,
  cast(array_agg(fence) as text) as fences, array_agg(:now - coalesce(started_at, claimed_at)) as seconds,
  exists (select 1 from result_listeners l where l.until > :now) as awaited
from ended group by workspace, last_agent_id, type

-- name: complete_plain (postgres)
-- The same for one task, with its event: a transaction in one statement. `has_ties` runs once the task is locked, with a
-- snapshot of its own, so it sees a dependent submitted while this statement waited for the lock.
with held as materialized (
  select tasks.id from tasks where tasks.id = cast(:id as uuid) and tasks.fence = :fence and tasks.status || '' = 'running' and {ends_alone} for update
), lone as materialized (
  select held.id from held where not (select looked.tied from has_ties(held.id) as looked(tied))
), ended as (
  update tasks set {as_completed}
  from lone where tasks.id = lone.id
  returning tasks.id, fence, workspace, type, round, last_agent_id, last_runtime_id, claimed_at, started_at, attempt_cost
), written as (
  insert into attempts (task_id, fence, round, agent_id, runtime_id, claimed_at, started_at, ended_at, outcome, counted, cost,
    granted, result)
  select id, fence, round, last_agent_id, last_runtime_id, claimed_at, started_at, cast(:now as double precision), 'completed', false,
    attempt_cost, 0, cast(:result as json)
  from ended
), logged as (
  insert into events (at, workspace, task_id, dag_id, verb, path, actor, request_id, fence, data, type, seconds)
  select :now, workspace, id, id, cast(:verb as text), cast(:path as text), coalesce(cast(:actor as text), 'agent:' || last_agent_id),
    cast(:request_id as text), fence, cast(:data as json), type, :now - coalesce(started_at, claimed_at)
  from ended
)
select ended.id, exists (select 1 from result_listeners l where l.until > :now) as awaited from ended

-- name: start_plain (postgres)
-- Starts one claim, with its event, as a transaction of its own, if the task has the usual time limit of its type and no
-- settings. `terms` has the limits of each type that the caller knows.
-- rows terms: type text, timeout_sec float, run_until float, lease_until float, lease_check_at float
with started as (
  update tasks set status = 'running', started_at = :now, heartbeat_at = :now, ack_by = null, run_until = terms.run_until,
    lease_until = terms.lease_until, lease_check_at = terms.lease_check_at, version = version + 1, updated_at = :now
  from {terms} where tasks.id = cast(:id as uuid) and tasks.fence = :fence and tasks.status || '' = 'claimed'
    and tasks.workspace = :workspace and tasks.type = terms.type and not tasks.own_settings
    and tasks.timeout_sec is not distinct from terms.timeout_sec and (cast(:holder as text) is null or tasks.holder = :holder)
  returning tasks.id, tasks.dag_id, tasks.agent_id
), logged as (
  insert into events (at, workspace, task_id, dag_id, verb, path, actor, request_id, fence)
  select :now, cast(:workspace as text), id, dag_id, 'started', cast(:path as text), coalesce(cast(:actor as text), 'agent:' || agent_id),
    cast(:request_id as text), cast(:fence as bigint)
  from started
)
select started.id from started

-- name: beat_plain (postgres)
-- Heartbeats that report nothing, as a single statement: all of these claims or none. It locks tasks, agents and runtimes in this
-- order, each by id: each part needs all rows of the one before. If an instruction waits in the workspace, nothing changes.
-- The only row returns how long to slow down.
-- rows items: id uuid, fence bigint
with held as materialized (
  select tasks.id, tasks.agent_id, tasks.runtime_id from {items} join tasks on tasks.id = items.id
  where tasks.fence = items.fence and tasks.status || '' in ('claimed', 'running') and tasks.workspace = :workspace
    and (cast(:holder as text) is null or tasks.holder = :holder)
  order by tasks.id for update of tasks
), plain as materialized (
  select count(*) as size from held having count(*) = :count
    and not exists (select 1 from instructions i where i.workspace = :workspace and i.open)
), agents_held as materialized (
  select a.id from agents a where a.workspace = :workspace and a.id in (select held.agent_id from held) and exists (select 1 from plain)
  order by a.id for update
), beaten as (
  update tasks set heartbeat_at = :now from held where tasks.id = held.id and exists (select 1 from plain)
), noted as (
  update agents set last_heartbeat = :now, status = case when status = 'failed' then 'active' else status end
  from agents_held where agents.workspace = :workspace and agents.id = agents_held.id
), seen as (
  insert into runtimes (workspace, id, status, heartbeat_at, seen_at, registered_at)
  select cast(:workspace as text), r.id, 'active', cast(:heartbeat_at as double precision), cast(:now as double precision), :now
  from (select distinct held.runtime_id as id from held) r
  where exists (select 1 from plain) and (select count(*) from agents_held) >= 0 order by r.id
  on conflict (workspace, id) do update set status = 'active', seen_at = excluded.seen_at,
    heartbeat_at = coalesce(excluded.heartbeat_at, runtimes.heartbeat_at)
)
select plain.size, (select max(g.until) from gates g where g.workspace = :workspace and g.kind = 'slowdown' and g.until > :now) as slow_until
from plain

-- name: claim_plain (postgres)
-- A claim in one statement, as a transaction of its own. It takes tasks only if all of this holds: the agent is as the
-- caller knows it, and was not changed while this waited for its lock (see `lock_claimer`); the caller knows every lane
-- with work; exactly one of the lanes that this agent may take has work; there is no gate, limit or window; and the tasks
-- need nothing special. Returns at least one row, which reports what was found; none if there is no such agent.
-- rows terms: lane int, type text, path text, timeout_sec float, status text, started_at float, ack_by float, run_until float, lease_until float, lease_check_at float
-- rows others: lane int
with {walk}, me as materialized (
  select a.max_concurrent_tasks, a.asked_at, a.xmin as written_by, a.status = 'active' and a.budget is null and a.accounts is null
      and a.claim_ttl_sec is null and a.announced = cast(:announced as boolean) and a.types::text is not distinct from cast(:types as text)
      and a.capabilities::text = :capabilities and a.models::text = :models as known
  from agents a where a.workspace = :workspace and a.id = :agent for update
), opened as materialized (
  select terms.* from {terms} where terms.lane in (select w.lane from walk w where w.lane is not null)
), looked as materialized (
  select me.asked_at, (select cast(array_agg(w.lane) as text) from walk w where w.lane is not null) as ready,
    me.known and me.written_by = (select s.xmin from agents s where s.workspace = :workspace and s.id = :agent)
      and not exists (select 1 from walk w where w.lane is not null and w.lane not in (select terms.lane from {terms})
        and w.lane not in (select others.lane from {others})) as known,
    (select count(*) from opened) < 2
      and not exists (select 1 from gates g where g.workspace = :workspace)
      and not exists (select 1 from limits l where l.workspace = :workspace)
      and not exists (select 1 from account_windows w where w.workspace = :workspace)
      and not exists (select 1 from lanes l where l.workspace = :workspace and l.target_agent_id = :agent
        and (select x.id from tasks x where x.lane = l.id and x.status = 'ready' and x.hold is null
          order by x.rank, x.ordered_at, x.id limit 1) is not null) as plain,
    case when me.max_concurrent_tasks is null then cast(:most as bigint)
      else least(:most, me.max_concurrent_tasks + cast(:ahead as bigint) - (select count(*) from tasks t where t.agent_id = :agent
        and t.workspace = :workspace and t.status <> 'validating')) end as free
  from me
), lane_taken as materialized (
  select opened.*, looked.free from looked cross join opened where looked.known and looked.plain and looked.free > 0
), picked as materialized (
  select {handed_over}
  from tasks t
  where t.lane = (select lane_taken.lane from lane_taken) and t.status = 'ready' and t.hold is null and {unexpired}
  order by t.rank, t.ordered_at, t.id limit coalesce((select lane_taken.free from lane_taken), 0)
  for update skip locked
), found as materialized (
  select p.*, b.body, p.fence = 0 and p.dag_id = p.id and p.budget_id is null and p.last_agent_id is null and not p.own_settings
    and p.timeout_sec is not distinct from l.timeout_sec and p.lost_agent_id is null and strpos(b.body::text, '"dependencies"') = 0
    and strpos(b.body::text, '"context_refs"') = 0 as plain
  from picked p join bodies b on b.task_id = p.id cross join lane_taken l
), claimable as materialized (
  select found.id from found where (select bool_and(each.plain) from found each)
), taken as (
  update tasks set status = lane_taken.status, fence = fence + 1, version = version + 1, agent_id = :agent,
    runtime_id = coalesce(cast(:runtime as text), :agent), holder = :holder, claimed_at = :now, started_at = lane_taken.started_at,
    heartbeat_at = null, ack_by = lane_taken.ack_by, run_until = lane_taken.run_until, lease_until = lane_taken.lease_until,
    lease_check_at = lane_taken.lease_check_at, granted = 0, charged = false, attempt_cost = 0, available_at = null,
    lost_agent_id = null, updated_at = :now
  from claimable cross join lane_taken where tasks.id = claimable.id
  returning tasks.id, tasks.fence, case when tasks.version = 2 then :now - tasks.created_at end as seconds
), noted as (
  update agents set last_heartbeat = :now, last_type = (select lane_taken.type from lane_taken), asked_at = :now, asked = cast(:asked as json)
  where agents.workspace = :workspace and agents.id = :agent and exists (select 1 from taken)
), seen as (
  insert into runtimes (workspace, id, status, seen_at, registered_at)
  select cast(:workspace as text), cast(:runtime as text), 'active', cast(:now as double precision), :now from looked
  where cast(:runtime as text) is not null and looked.known and looked.plain and (exists (select 1 from taken) or cast(:always_seen as boolean))
    and not exists (select 1 from runtimes r where r.workspace = :workspace and r.id = :runtime and r.status = 'active'
      and r.seen_at > cast(:seen_after as double precision))
  on conflict (workspace, id) do update set status = 'active', seen_at = excluded.seen_at
), batch as materialized ({batch} from (select taken.id as task_id, taken.fence, taken.seconds from taken) as items), {numbered}, logged as (
  insert into events (seq, at, workspace, task_id, dag_id, verb, path, actor, request_id, fence, data, type, seconds, task_ids, fences, spans, seqs, size)
  overriding system value
  select n.seqs[n.size], cast(:now as double precision), cast(:workspace as text), cast(null as uuid), cast(null as uuid), 'claimed', l.path,
    cast(:actor as text), cast(:request_id as text), cast(null as bigint), cast(null as json), l.type, cast(null as double precision),
    n.task_ids, n.fences, n.spans, case when n.spread >= n.size then n.seqs end, n.size
  from numbered n cross join lane_taken l where n.spread < 4096
  union all
  select e.seq, :now, :workspace, e.task_id, e.task_id, 'claimed', l.path, :actor, :request_id, e.fence, null, l.type, e.seconds,
    null, null, null, null, null
  from numbered n cross join lane_taken l cross join lateral unnest(n.seqs, n.task_ids, n.fences, n.spans) as e(seq, task_id, fence, seconds)
  where n.spread >= 4096
)
select looked.known, looked.plain as is_plain, looked.free, looked.asked_at as agent_asked_at, looked.ready,
  (select count(*) from opened) as open_lanes, found.*
from looked left join found on true order by found.rank, found.ordered_at, found.id
