-- name: read_meter_mark
select * from meter_marks where name = 'log'

-- name: add_meter_mark
insert into meter_marks (name, folded_to, whole_to, seen_to, writers, costs_to) values ('log', 0, 0, 0, '[]', 0) on conflict do nothing

-- name: lock_meter_mark
select folded_to, costs_to from meter_marks where name = 'log' {pg: for update}

-- name: move_meter_mark
update meter_marks set whole_to = :whole_to, seen_to = :seen_to, writers = :writers where name = 'log'

-- name: move_meters
update meter_marks set folded_to = :folded_to, costs_to = :costs_to where name = 'log'

-- name: read_meters
select name, labels, value from meters where workspace = :workspace

-- name: meter_series
select labels from meters where workspace = :workspace and name = :name

-- name: add_meters
-- rows items: workspace text, name text, labels text, value float
insert into meters (workspace, name, labels, value, moved_at)
select items.workspace, items.name, items.labels, items.value, :now from {items} where true
on conflict (workspace, name, labels) do update set value = meters.value + excluded.value, moved_at = excluded.moved_at

-- name: drop_still_meters
-- Series of one metric that nobody has moved since: they make room for others.
delete from meters where workspace = :workspace and name = :name and moved_at < :before

-- name: meter_counts
-- What a stretch of the log comes to, of one workspace or of all.
select e.workspace, e.verb, case when e.verb = 'failed' then e.reason end as reason, coalesce(t.type, a.type) as type,
  case when e.verb = 'agent_silent' then e.data ->> 'agent' end as agent,
  case when e.path like '%>dead_lettered' then 1 else 0 end as dead,
  sum(case when e.verb = 'agent_silent' then cast(e.data ->> 'tasks' as {pg: bigint}{lite: integer}) else 1 end) as total
from events e left join tasks t on t.id = e.task_id left join archive a on a.id = e.task_id and t.id is null
where e.seq > :after and e.seq <= :last and (cast(:workspace as text) is null or e.workspace = :workspace)
  and (e.verb in ('submitted', 'spawned', 'retried', 'rerun', 'completed', 'failed', 'agent_silent') or e.path like '%>dead_lettered')
group by 1, 2, 3, 4, 5, 6

-- name: meter_waits
-- How long each claim's task had been ready, by what its own history says.
select e.workspace, coalesce(t.type, a.type) as type, e.at - (
  select max(x.at) from events x where x.task_id = e.task_id and x.seq < e.seq and x.path like '%ready') as seconds
from events e left join tasks t on t.id = e.task_id left join archive a on a.id = e.task_id and t.id is null
where e.seq > :after and e.seq <= :last and (cast(:workspace as text) is null or e.workspace = :workspace)
  and e.verb = 'claimed' and e.at >= :since

-- name: meter_ends
-- The attempts whose ends a stretch of the log tells.
select e.workspace, e.verb, coalesce(t.type, r.type) as type, a.agent_id, a.claimed_at, a.started_at, a.ended_at, t.created_at
from events e join attempts a on a.task_id = e.task_id and a.fence = e.fence
left join tasks t on t.id = e.task_id left join archive r on r.id = e.task_id and t.id is null
where e.seq > :after and e.seq <= :last and (cast(:workspace as text) is null or e.workspace = :workspace)
  and e.verb in ('completed', 'failed', 'lease_expired', 'released', 'waited', 'cancelled') and e.at >= :since

-- name: meter_costs
-- What attempts claimed in this time have cost, of one workspace.
select c.workspace, c.type, c.agent_id, c.model, sum(c.cost) as cost from costs c
where c.workspace = :workspace and c.claimed_at >= :since and c.claimed_at < :until group by 1, 2, 3, 4

-- name: held_spells
select agent_id, claimed_at from tasks where agent_id is not null and workspace = :workspace and status <> 'validating'

-- name: open_alert_counts
select severity, count(*) as total from alerts where workspace = :workspace and acknowledged_at is null group by 1

-- name: insert_metric_snapshots
-- insert metric_snapshots: workspace text, at float, samples json

-- name: metric_snapshots
-- Newest first.
select at, samples from metric_snapshots where workspace = :workspace and at >= :since order by at desc limit :count

-- name: drop_metric_snapshots
delete from metric_snapshots where workspace = :workspace and at < :before
