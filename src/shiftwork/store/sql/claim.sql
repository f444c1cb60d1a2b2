-- name: open_lanes
-- Lanes that hold work, by jumping from one to the next in the claim index, and the gates that are closed.
with recursive walk(lane) as (
  select lane from (
    select t.lane from tasks t where t.status = 'ready' and t.hold is null and t.lane < :bound order by t.lane limit 1
  ) as lowest
  union all
  select (select t.lane from tasks t where t.status = 'ready' and t.hold is null and t.lane > walk.lane and t.lane < :bound
          order by t.lane limit 1)
  from walk where walk.lane is not null
)
select walk.lane as lane, null as scope from walk where walk.lane is not null
union all
select l.id, null from lanes l where l.workspace = :workspace and l.target_agent_id = :agent
union all
select null, g.scope from gates g where g.workspace = :workspace

-- name: take_from_lane
-- One eligible lane: lock while scanning the index, so that claimers never wait for each other.
{pg: with picked as materialized (}
  select t.* {lite: , b.body} from tasks t {lite: join bodies b on b.task_id = t.id}
  where t.lane = :lane and t.status = 'ready' and t.hold is null and (t.rank, t.ordered_at, t.id) > (:rank, :ordered_at, :id)
  order by t.rank, t.ordered_at, t.id limit :count
  {pg: for update skip locked)
  select p.*, b.body from picked p join bodies b on b.task_id = p.id order by p.rank, p.ordered_at, p.id}

-- name: lane_heads
-- The next candidates of each lane after a position in it.
-- rows lanes: lane int, rank float, ordered_at float, id uuid
select t.id, t.lane, t.rank, t.ordered_at from {lanes} cross join tasks t where t.id in (
  select x.id from tasks x where x.lane = lanes.lane and x.status = 'ready' and x.hold is null
    and (x.rank, x.ordered_at, x.id) > (lanes.rank, lanes.ordered_at, lanes.id)
  order by x.rank, x.ordered_at, x.id limit :count)

-- name: lane_heads (postgres)
-- A lateral join: one index scan per lane, stopped after :count rows; the form above reads every lane whole here.
-- rows lanes: lane int, rank float, ordered_at float, id uuid
select h.id, h.lane, h.rank, h.ordered_at from {lanes} cross join lateral (
  select x.id, x.lane, x.rank, x.ordered_at from tasks x where x.lane = lanes.lane and x.status = 'ready' and x.hold is null
    and (x.rank, x.ordered_at, x.id) > (lanes.rank, lanes.ordered_at, lanes.id)
  order by x.rank, x.ordered_at, x.id limit :count) h

-- name: take_chosen
-- Several lanes: lock of the chosen what nobody else holds, re-checking what may have changed since. (`|| ''` keeps the
-- planner from walking the claim index instead of looking up the ids: without statistics that took 68 s on a million.)
-- rows items: place int, id uuid, lane int
{pg: with picked as materialized (}
  select items.place as place, t.* {lite: , b.body} from {items} join tasks t on t.id = items.id {lite: join bodies b on b.task_id = t.id}
  where t.status || '' = 'ready' and t.hold is null and t.lane = items.lane
  order by items.place limit :count
  {pg: for update of t skip locked)
  select p.*, b.body from picked p join bodies b on b.task_id = p.id order by p.place}

-- name: claim_tasks
-- All of one type share their limits, so these are not sent per row.
-- rows items: id uuid
update tasks set status = :status, fence = fence + 1, version = version + 1, agent_id = :agent, runtime_id = :runtime,
  claimed_at = :now, started_at = :started_at, heartbeat_at = null, ack_by = :ack_by, run_until = :run_until,
  lease_until = :lease_until, lease_check_at = :lease_check_at, reserved = :reserved, attempt_cost = 0, available_at = null,
  lost_agent_id = null, updated_at = :now
from {items} where tasks.id = items.id

-- name: lock_agent
select * from agents where workspace = :workspace and id = :id {pg: for update}

-- name: read_agent
select * from agents where workspace = :workspace and id = :id

-- name: held_by_agent
select count(*) as held from tasks where agent_id = :agent and workspace = :workspace

-- name: held_claims
select id, fence, type, status from tasks where agent_id = :agent and workspace = :workspace

-- name: note_claim
-- A claim is a sign of life of the agent and of its runtime.
update agents set last_heartbeat = :now, reserved = reserved + :reserved, last_type = coalesce(:type, last_type)
where workspace = :workspace and id = :id

-- name: other_agents
-- Who else could take a task now: active, heard from lately, with a free slot.
select a.* from agents a where a.workspace = :workspace and a.id <> :id and a.status = 'active' and a.last_heartbeat >= :since
  and (a.max_concurrent_tasks is null or a.max_concurrent_tasks >
       (select count(*) from tasks t where t.agent_id = a.id and t.workspace = a.workspace))
limit 200
