-- name: read_routes
select workspace, generation, state, peer, first_event, last_event from routes

-- name: route_left
select peer from routes where workspace = :workspace and state = 'left'

-- name: finish_arrival
update routes set first_event = :upto where workspace = :workspace and state = 'here'

-- name: workspace_tasks
-- Workspaces with how many tasks each has that are not finished.
select w.name, w.profile, w.created_at, (
  select count(*) from tasks t where t.workspace = w.name and t.status not in ('completed', 'cancelled', 'dead_lettered')
) as open_tasks
from workspaces w order by w.name

-- name: has_routes
select 1 from routes limit 1
