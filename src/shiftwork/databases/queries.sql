-- name: read_routes
select workspace, generation, state, peer, first_event, last_event from routes

-- name: route_left
select peer from routes where workspace = :workspace and state = 'left'

-- name: finish_arrival
update routes set first_event = :upto where workspace = :workspace and state = 'here'

-- name: workspace_tasks
-- The number of tasks of each workspace, in one pass over the tasks.
select w.name, w.profile, w.created_at, coalesce(c.open_tasks, 0) as open_tasks, coalesce(c.ready, 0) as ready,
  coalesce(c.running, 0) as running, coalesce(c.dead_lettered, 0) as dead_lettered
from workspaces w left join (
  select workspace, count(*) filter (where status not in ('completed', 'cancelled', 'dead_lettered')) as open_tasks,
    count(*) filter (where status = 'ready') as ready,
    count(*) filter (where status in ('claimed', 'running', 'validating')) as running,
    count(*) filter (where status = 'dead_lettered') as dead_lettered
  from tasks group by workspace
) c on c.workspace = w.name
order by w.name

-- name: has_routes
select 1 from routes limit 1
