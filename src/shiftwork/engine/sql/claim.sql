-- part: walk
-- Lanes with work, found by skipping from lane to lane in the claim index.
recursive walk(lane) as (
  select lane from (
    select t.lane from tasks t where t.status = 'ready' and t.hold is null and t.lane < :bound order by t.lane limit 1
  ) as lowest
  union all
  select (select t.lane from tasks t where t.status = 'ready' and t.hold is null and t.lane > walk.lane and t.lane < :bound
          order by t.lane limit 1)
  from walk where walk.lane is not null
)

-- name: lock_claimer
-- Locks the agent; returns one row for each lane with work or of its own, closed gate, limit, account with windows, and
-- the count of its occupied slots if they are limited (a task that awaits its verdict takes none), with the runtime's last
-- heartbeat. All but the agent is read before the lock: if another transaction changed the agent meanwhile, as every
-- claim that gets work does, the answer is not `exact` and must be read again.
with {walk}, me as materialized (
  select a.*, {postgres: a.xmin as written_by, }
    (select r.seen_at from runtimes r where r.workspace = :workspace and r.id = :runtime and r.status = 'active') as runtime_seen_at
  from agents a where a.workspace = :workspace and a.id = :agent {postgres: for update of a}
), found as (
  select walk.lane as lane, null as scope, null as kind, null as agent_id, {postgres: null::double precision}{sqlite: null} as until,
    {postgres: null::bigint}{sqlite: null} as held
  from walk where walk.lane is not null
  union all
  select l.id, null, null, null, null, null from lanes l where l.workspace = :workspace and l.target_agent_id = :agent
  union all
  select null, g.scope, g.kind, g.agent_id, g.until, null from gates g where g.workspace = :workspace
  union all
  select null, l.key, 'limited', '', null, null from limits l where l.workspace = :workspace
  union all
  select null, w.provider, 'windowed', w.account, null, null from account_windows w where w.workspace = :workspace
  union all
  select null, null, null, null, null, count(*) from tasks t
  where (select me.max_concurrent_tasks is not null from me)
    and t.agent_id = :agent and t.workspace = :workspace and t.status <> 'validating'
)
select me.*, found.lane, found.scope, found.kind, found.agent_id, found.until, found.held,
  {postgres: me.written_by = (select s.xmin from agents s where s.workspace = :workspace and s.id = :agent)}{sqlite: true} as exact
from me left join found on true

-- name: find_work
-- The same for several locked agents: lanes with work or of their own, closed gates, limits, and the number of tasks that
-- each agent holds, if that is limited.
-- rows items: id text
with {walk}
select walk.lane as lane, null as scope, null as kind, null as agent_id, {postgres: null::double precision}{sqlite: null} as until,
  {postgres: null::bigint}{sqlite: null} as held
from walk where walk.lane is not null
union all
select l.id, null, null, l.target_agent_id, null, null from {items} join lanes l on l.workspace = :workspace and l.target_agent_id = items.id
union all
select null, g.scope, g.kind, g.agent_id, g.until, null from gates g where g.workspace = :workspace
union all
select null, l.key, 'limited', '', null, null from limits l where l.workspace = :workspace
union all
select null, w.provider, 'windowed', w.account, null, null from account_windows w where w.workspace = :workspace
union all
select null, null, null, items.id, null, count(*)
from {items} join agents a on a.workspace = :workspace and a.id = items.id and a.max_concurrent_tasks is not null
join tasks t on t.agent_id = items.id and t.workspace = :workspace and t.status <> 'validating'
group by items.id

-- name: open_lanes
-- Lanes with work.
with {walk} select walk.lane from walk where walk.lane is not null

-- part: its_facts
-- The columns that a claim returns besides ids, without those that a ready row never has.
t.workspace, t.type, t.lane, t.rank, t.ordered_at, t.priority, t.boost, t.deadline, t.path_weight, t.front,
t.attempts, t.max_attempts, t.round, t.version, t.fence, t.last_agent_id, t.last_runtime_id, t.lost_agent_id, t.timeout_sec,
t.own_settings, t.estimated_cost, t.budget_id, t.cost, t.tokens_in, t.tokens_out, t.external_id, t.idempotency_key,
t.target_agent_id, t.issue_id, t.trigger_type, t.session_id, t.work_dir, t.force_fresh_session, t.failure_reason, t.created_at,
t.updated_at, t.expires_at, t.due_at

-- part: handed_over
t.id, t.dag_id, t.root_id, t.newest_id, t.parent_id, t.retry_of, t.rerun_of, {its_facts} {sqlite: , b.body}

-- part: handed_on
-- The same on PostgreSQL, with the body. Ids are text there, which the driver reads four times as fast.
cast(t.id as text) as id, cast(t.dag_id as text) as dag_id, cast(t.root_id as text) as root_id, cast(t.newest_id as text) as newest_id,
cast(t.parent_id as text) as parent_id, cast(t.retry_of as text) as retry_of, cast(t.rerun_of as text) as rerun_of, {its_facts}, b.body

-- part: unexpired
-- Maintenance cancels expired tasks; until it has, claims skip them.
(t.expires_at is null or t.expires_at > :now)

-- name: take_from_lane
-- One eligible lane: lock while scanning the index, so that claimers never wait for each other.
{postgres: with picked as materialized (}
  select {handed_over}
  from tasks t {sqlite: join bodies b on b.task_id = t.id}
  where t.lane = :lane and t.status = 'ready' and t.hold is null and (t.rank, t.ordered_at, t.id) > (:rank, :ordered_at, :id)
    and {unexpired}
  order by t.rank, t.ordered_at, t.id limit :count
  {postgres: for update skip locked)
  select {handed_on} from picked t join bodies b on b.task_id = t.id order by t.rank, t.ordered_at, t.id}

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

-- part: looked_at
-- The columns that decide whether a task fits an agent, except the body.
t.id, t.workspace, t.type, t.lane, t.rank, t.ordered_at, t.priority, t.created_at, t.updated_at, t.attempts, t.last_agent_id, t.last_runtime_id,
t.own_settings, t.estimated_cost, t.budget_id, t.target_agent_id

-- name: scan_lanes
-- As `lane_heads`, with the columns that decide whether a task fits: for a claim that found some that do not.
-- rows lanes: lane int, rank float, ordered_at float, id uuid
select {looked_at} from {lanes} cross join tasks t where t.id in (
  select x.id from tasks x where x.lane = lanes.lane and x.status = 'ready' and x.hold is null
    and (x.rank, x.ordered_at, x.id) > (lanes.rank, lanes.ordered_at, lanes.id)
  order by x.rank, x.ordered_at, x.id limit :count)

-- name: scan_lanes (postgres)
-- A lateral join, for the same reason.
-- rows lanes: lane int, rank float, ordered_at float, id uuid
select h.* from {lanes} cross join lateral (
  select {looked_at} from tasks t where t.lane = lanes.lane and t.status = 'ready' and t.hold is null
    and (t.rank, t.ordered_at, t.id) > (lanes.rank, lanes.ordered_at, lanes.id)
  order by t.rank, t.ordered_at, t.id limit :count) h

-- name: read_places
select lane, rank, ordered_at, task_id from places where workspace = :workspace and agent_id = :agent and wants = :wants

-- name: save_places
-- rows items: workspace text, agent_id text, wants text, lane int, rank float, ordered_at float, task_id uuid, at float
insert into places (workspace, agent_id, wants, lane, rank, ordered_at, task_id, at)
select workspace, agent_id, wants, lane, rank, ordered_at, task_id, at from {items} where true
on conflict (workspace, agent_id, wants, lane) do update set rank = excluded.rank, ordered_at = excluded.ordered_at,
  task_id = excluded.task_id, at = excluded.at

-- name: drop_places
-- All lanes were scanned; also drops places that the agent has not used for long.
delete from places where workspace = :workspace and agent_id = :agent and (wants = :wants or at < :before)

-- name: oldest_ready
-- In order of creation, for which there is no index.
-- rows lanes: lane int
select {looked_at} from {lanes} join tasks t on t.lane = lanes.lane and t.status = 'ready' and t.hold is null
where (t.created_at, t.id) > (:created_at, :id) order by t.created_at, t.id limit :count

-- name: take_chosen
-- Several lanes: locks the chosen tasks that no other transaction has locked, and rechecks them. (`|| ''` keeps the
-- planner from scanning the claim index instead of looking up the ids: without statistics, that took 68 s on a million.)
-- rows items: place int, id uuid, lane int
{postgres: with picked as materialized (}
  select items.place as place, {handed_over}
  from {items} join tasks t on t.id = items.id {sqlite: join bodies b on b.task_id = t.id}
  where t.status || '' = 'ready' and t.hold is null and t.lane = items.lane and {unexpired}
  order by items.place limit :count
  {postgres: for update of t skip locked)
  select {handed_on} from picked t join bodies b on b.task_id = t.id order by t.place}

-- name: claim_tasks
-- own rows: those that `take_from_lane` or `take_chosen` has locked.
-- Tasks of one type share their limits, so these are not sent per row.
-- rows items: id uuid
update tasks set status = :status, fence = fence + 1, version = version + 1, agent_id = :agent, runtime_id = :runtime,
  holder = :holder, claimed_at = :now, started_at = :started_at, heartbeat_at = null, ack_by = :ack_by, run_until = :run_until,
  lease_until = :lease_until, lease_check_at = :lease_check_at, granted = :granted, charged = :charged, attempt_cost = 0, available_at = null,
  lost_agent_id = null, updated_at = :now
from {items} where tasks.id = items.id

-- name: claim_tasks_of_many
-- own rows: those that `take_chosen` has locked.
-- The same for claims of several agents, none of which is charged to a budget.
-- rows items: id uuid, status text, agent_id text, runtime_id text, holder text, started_at float, ack_by float, run_until float, lease_until float, lease_check_at float
update tasks set status = items.status, fence = fence + 1, version = version + 1, agent_id = items.agent_id,
  runtime_id = items.runtime_id, holder = items.holder, claimed_at = :now, started_at = items.started_at, heartbeat_at = null,
  ack_by = items.ack_by, run_until = items.run_until, lease_until = items.lease_until, lease_check_at = items.lease_check_at,
  granted = 0, charged = false, attempt_cost = 0, available_at = null, lost_agent_id = null, updated_at = :now
from {items} where tasks.id = items.id

-- name: waiting_targets
-- Agents with waiting targeted work, those with the best task first: one probe of the claim index per lane.
-- The batch lane is left out: it belongs to no runtime.
select l.target_agent_id as agent_id from lanes l join tasks t on t.id = (
  select x.id from tasks x where x.lane = l.id and x.status = 'ready' and x.hold is null
  order by x.rank, x.ordered_at, x.id limit 1)
left join agents a on a.workspace = l.workspace and a.id = l.target_agent_id
where l.workspace = :workspace and l.target_agent_id is not null and l.target_agent_id not like 'shiftwork-batch-%' and coalesce(a.status, 'active') not in ('draining', 'offline')
group by l.target_agent_id order by min(t.rank), min(t.ordered_at), l.target_agent_id limit :count

-- name: lock_agent
select * from agents where workspace = :workspace and id = :id {postgres: for update}

-- name: read_agent
select * from agents where workspace = :workspace and id = :id

-- name: held_claims
select id, fence, type, status from tasks where agent_id = :agent and workspace = :workspace

-- name: note_claim
-- own rows: `lock_claimer` has locked the agent.
-- A claim counts as a heartbeat of the agent and of its runtime.
update agents set last_heartbeat = :now, granted = granted + :granted, last_type = coalesce(:type, last_type),
  asked_at = coalesce(:asked_at, asked_at), asked = coalesce(:asked, asked)
where workspace = :workspace and id = :id

-- name: note_claims
-- own rows: `lock_agents` has locked the agents.
-- The same for several agents, each with whether it got work: only that changes its last type.
-- rows items: id text, type text, asked json
update agents set last_heartbeat = :now, last_type = coalesce(items.type, last_type), asked_at = :now, asked = items.asked
from {items} where agents.workspace = :workspace and agents.id = items.id

-- name: note_ask
-- A claim without work counts as a heartbeat, and records which work the agent would take.
update agents set last_heartbeat = :now, status = case when status = 'failed' then 'active' else status end,
  asked_at = :now, asked = :asked
where workspace = :workspace and id = :id

-- name: asking_agents
-- Other agents that could take a task now: active, with a free slot, and they have claimed or registered recently.
select f.* from (
  select a.*, case when a.max_concurrent_tasks is not null then a.max_concurrent_tasks - (select count(*) from tasks t
    where t.agent_id = a.id and t.workspace = a.workspace and t.status <> 'validating') end as free_slots
  from agents a where a.workspace = :workspace and a.id <> :id and a.status = 'active'
    and coalesce(a.asked_at, a.registered_at) >= :since
) f where f.free_slots is null or f.free_slots > 0
order by f.id limit 200
