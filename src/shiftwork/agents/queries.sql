-- name: upsert_agent
insert into agents (workspace, id, type, types, capabilities, models, provider, account, accounts, max_concurrent_tasks, status, budget, told,
  poll_interval_sec, claim_ttl_sec, isolation_group, announced, registered_at, last_heartbeat)
values (:workspace, :id, :type, :types, :capabilities, :models, :provider, :account, :accounts, :max_concurrent_tasks, 'active', :budget, :told,
  :poll_interval_sec, :claim_ttl_sec, :isolation_group, true, :now, :now)
on conflict (workspace, id) do update set type = excluded.type, types = excluded.types, capabilities = excluded.capabilities,
  models = excluded.models, provider = excluded.provider, account = excluded.account, accounts = excluded.accounts, max_concurrent_tasks = excluded.max_concurrent_tasks, status = 'active', budget = excluded.budget, told = excluded.told,
  poll_interval_sec = excluded.poll_interval_sec, claim_ttl_sec = excluded.claim_ttl_sec,
  isolation_group = excluded.isolation_group, announced = true, last_heartbeat = excluded.last_heartbeat,
  asked = null

-- name: add_agent
-- Inserts an agent that claims without being registered; a concurrent registration wins.
insert into agents (workspace, id, type, types, capabilities, models, max_concurrent_tasks, status, budget, poll_interval_sec,
  claim_ttl_sec, isolation_group, announced, registered_at, last_heartbeat)
values (:workspace, :id, :type, :types, :capabilities, :models, :max_concurrent_tasks, 'active', :budget, :poll_interval_sec,
  :claim_ttl_sec, :isolation_group, false, :now, :now)
on conflict do nothing

-- name: restate_agent
update agents set types = :types, capabilities = :capabilities, models = :models where workspace = :workspace and id = :id

-- name: set_agent_status
update agents set status = :status where workspace = :workspace and id = :id returning id

-- name: set_agent_budget
update agents set budget = :budget, told = :told where workspace = :workspace and id = :id returning id

-- name: list_agents
select a.*, (select count(*) from tasks t where t.agent_id = a.id and t.workspace = a.workspace and t.status <> 'validating') as current_tasks
from agents a where a.workspace = :workspace order by a.id

-- name: show_agent
select a.*, (select count(*) from tasks t where t.agent_id = a.id and t.workspace = a.workspace and t.status <> 'validating') as current_tasks
from agents a where a.workspace = :workspace and a.id = :id

-- name: beat_agent
-- A heartbeat makes a failed agent active.
update agents set last_heartbeat = :now, status = case when status = 'failed' then 'active' else status end
where workspace = :workspace and id = :id

-- name: touch_runtime
-- Records a heartbeat; returns how long to slow down and whether any instruction waits in the workspace. Only a
-- heartbeat that names no task covers all of its tasks.
insert into runtimes (workspace, id, status, heartbeat_at, seen_at, registered_at) values (:workspace, :id, 'active', :heartbeat_at, :now, :now)
on conflict (workspace, id) do update set status = 'active', seen_at = excluded.seen_at,
  heartbeat_at = coalesce(excluded.heartbeat_at, runtimes.heartbeat_at)
returning (select max(g.until) from gates g where g.workspace = :workspace and g.kind = 'slowdown' and g.until > :now) as slow_until,
  exists (select 1 from instructions i where i.workspace = :workspace and i.open) as instructed

-- name: runtimes_seen
-- rows items: id text
select r.id, r.status, r.seen_at from {items} join runtimes r on r.workspace = :workspace and r.id = items.id

-- name: touch_runtimes
-- rows items: id text
insert into runtimes (workspace, id, status, seen_at, registered_at)
select cast(:workspace as text), items.id, 'active', cast(:now as {postgres: double precision}{sqlite: real}),
  cast(:now as {postgres: double precision}{sqlite: real}) from {items} where true
on conflict (workspace, id) do update set status = 'active', seen_at = excluded.seen_at

-- name: set_runtime_status
update runtimes set status = :status where workspace = :workspace and id = :id returning id

-- name: list_runtimes
select r.*, (select count(*) from tasks t where t.runtime_id = r.id and t.agent_id is not null and t.workspace = r.workspace
  and t.status <> 'validating') as held
from runtimes r where r.workspace = :workspace order by r.id

-- name: read_runtime
select * from runtimes where workspace = :workspace and id = :id

-- name: held_by_runtime
-- A task that awaits its verdict takes no slot.
select id, fence from tasks where runtime_id = :runtime and workspace = :workspace and agent_id is not null
  and status <> 'validating' order by id

-- name: runtimes_of_agent
select distinct runtime_id from tasks where agent_id = :agent and workspace = :workspace order by 1

-- name: claims_not_started
-- Claimed and not started, of agents that hold more than one; the newest first.
select t.id, t.agent_id from tasks t where t.workspace = :workspace and t.status = 'claimed' order by t.claimed_at desc, t.id desc limit :count

-- name: set_presence
update runtimes set presence = :presence where workspace = :workspace and id = :id

-- name: present_runtimes
-- Runtimes that announced their process, and hold claims or were seen since a moment.
select r.workspace, r.id, r.presence from runtimes r where r.presence is not null and r.status = 'active'
  and (r.seen_at >= :since or exists (select 1 from tasks t where t.runtime_id = r.id and t.workspace = r.workspace
                                      and t.agent_id is not null and t.status <> 'validating'))

-- name: silent_agents
-- Agents not heard from since a moment, directly or through a runtime that holds work for them; without unregistered
-- agents that hold nothing.
-- rows items: workspace text, before float
select a.workspace, a.id, {postgres: greatest}{sqlite: max}(a.last_heartbeat, (
    select coalesce(max({postgres: greatest}{sqlite: max}(t.claimed_at, coalesce(t.heartbeat_at, 0), coalesce(r.seen_at, 0))), 0)
    from tasks t left join runtimes r on r.workspace = t.workspace and r.id = t.runtime_id
    where t.agent_id = a.id and t.workspace = a.workspace)) as heard_at
from {items} join agents a on a.workspace = items.workspace
where a.status in ('active', 'draining') and a.last_heartbeat <= items.before
  and a.id not like 'shiftwork-batch-%' -- no process: its tasks wait at a provider
  and (a.announced or exists (select 1 from tasks t where t.agent_id = a.id and t.workspace = a.workspace))
  and not exists (
    select 1 from tasks t left join runtimes r on r.workspace = t.workspace and r.id = t.runtime_id
    where t.agent_id = a.id and t.workspace = a.workspace
      and (t.claimed_at > items.before or t.heartbeat_at > items.before or r.seen_at > items.before))
order by a.workspace, a.id limit :count

-- name: check_claims_of
-- rows items: workspace text, id text
update tasks set lease_check_at = :now from {items}
where tasks.agent_id = items.id and tasks.workspace = items.workspace and tasks.status in ('claimed', 'running')

-- name: fail_agents
-- rows items: workspace text, id text
update agents set status = 'failed' from {items}
where agents.workspace = items.workspace and agents.id = items.id and agents.status in ('active', 'draining')
returning agents.workspace, agents.id

-- name: fail_lost_agent
-- Fails agents whose process has died. One that still holds work does so through another process.
update agents set status = 'failed' where workspace = :workspace and id = :id and status in ('active', 'draining')
  and not exists (select 1 from tasks t where t.agent_id = agents.id and t.workspace = agents.workspace and t.status <> 'validating')
returning id

-- name: live_agents
select count(*) as total from agents a where a.workspace = :workspace and a.status = 'active'
  and a.id not like 'shiftwork-batch-%' -- no process
  and (a.last_heartbeat > :since
  or exists (select 1 from tasks t join runtimes r on r.workspace = t.workspace and r.id = t.runtime_id
             where t.agent_id = a.id and t.workspace = a.workspace and r.seen_at > :since))

-- name: resolve_agent_alerts
-- The agents of these alerts are back.
update alerts set acknowledged_at = :now, acknowledged_by = :actor
where workspace = :workspace and acknowledged_at is null and kind = 'agent_failed' and exists (
  select 1 from agents a where a.workspace = alerts.workspace and a.id = alerts.data ->> 'agent' and a.status <> 'failed')

-- name: agents_workspaces
select distinct workspace as name from agents order by 1
