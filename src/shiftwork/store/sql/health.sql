-- name: silent_agents
-- Agents unheard of since a moment, by themselves or through a runtime that holds work for them. One that never
-- announced itself and holds nothing is not missed.
-- rows items: workspace text, before float
select a.workspace, a.id, {pg: greatest}{lite: max}(a.last_heartbeat, (
    select coalesce(max({pg: greatest}{lite: max}(t.claimed_at, coalesce(t.heartbeat_at, 0), coalesce(r.seen_at, 0))), 0)
    from tasks t left join runtimes r on r.workspace = t.workspace and r.id = t.runtime_id
    where t.agent_id = a.id and t.workspace = a.workspace)) as heard_at
from {items} join agents a on a.workspace = items.workspace
where a.status in ('active', 'draining') and a.last_heartbeat <= items.before
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
-- Its process has died. One that holds work all the same does so through another process.
update agents set status = 'failed' where workspace = :workspace and id = :id and status in ('active', 'draining')
  and not exists (select 1 from tasks t where t.agent_id = agents.id and t.workspace = agents.workspace and t.status <> 'validating')
returning id

-- name: live_agents
select count(*) as total from agents a where a.workspace = :workspace and a.status = 'active' and (a.last_heartbeat > :since
  or exists (select 1 from tasks t join runtimes r on r.workspace = t.workspace and r.id = t.runtime_id
             where t.agent_id = a.id and t.workspace = a.workspace and r.seen_at > :since))

-- name: resolve_agent_alerts
-- The agents they name are back.
update alerts set acknowledged_at = :now, acknowledged_by = :actor
where workspace = :workspace and acknowledged_at is null and kind = 'agent_failed' and exists (
  select 1 from agents a where a.workspace = alerts.workspace and a.id = alerts.data ->> 'agent' and a.status <> 'failed')

-- name: agents_workspaces
select distinct workspace as name from agents order by 1
