-- name: insert_tasks
-- insert tasks: id uuid, workspace text, type text, status text, hold text, lane int, rank float, ordered_at float, rerank_at float, priority float, boost float, deadline float, path_weight int, dag_id uuid, root_id uuid, parent_id uuid, retry_of uuid, rerun_of uuid, waiting int, block_check_at float, attempts int, max_attempts int, available_at float, last_agent_id text, last_runtime_id text, timeout_sec float, validation text, at_most_once boolean, own_settings boolean, tallied boolean, estimated_cost bigint, budget_id uuid, external_id text, idempotency_key text, target_agent_id text, issue_id text, trigger_type text, session_id text, work_dir text, force_fresh_session boolean, created_at float, updated_at float, expires_at float, due_at float

-- name: insert_bodies
-- insert bodies: task_id uuid, body json

-- name: insert_tags
-- insert tags: workspace text, tag text, task_id uuid
on conflict do nothing

-- name: insert_edges
-- insert edges: dependent uuid, dependency uuid, satisfied boolean, waits boolean
on conflict do nothing

-- name: insert_waits_for
-- A parent may wait again for a subtask that was done and is rerun.
-- insert edges: dependent uuid, dependency uuid, satisfied boolean, waits boolean, any_end boolean, failure json
on conflict (dependent, dependency) do update set satisfied = excluded.satisfied, waits = true, any_end = excluded.any_end,
  failure = excluded.failure

-- name: lock_dependencies
-- Orders submit and finish: takes a share lock on the parents, then their states are read with a new snapshot.
-- rows items: id uuid
select t.id, t.root_id, t.newest_id from {items} join tasks t on t.id = items.id order by t.id {postgres: for share of t}

-- name: lineage_states
-- The newest row of a lineage is its current one.
-- rows items: id uuid
select r.id as root_id, n.status, n.id, n.workspace, n.dag_id from {items} join tasks r on r.id = items.id
join tasks n on n.id = coalesce(r.newest_id, r.id)

-- name: lineage_rows
-- The rows that were added to these lineages after their roots.
-- rows items: id uuid
select t.id from {items} join tasks t on t.root_id = items.id and (t.retry_of is not null or t.rerun_of is not null)

-- name: archived_states
-- rows items: id uuid
select a.id, a.status, a.workspace from {items} join archive a on a.id = items.id

-- name: purged
-- rows items: id uuid
select s.task_id as id, s.workspace from {items} join tombstones s on s.task_id = items.id

-- name: add_names
-- insert names: workspace text, name text, task_id uuid, known boolean
on conflict do nothing

-- name: lock_names
-- rows items: name text
select n.name, n.task_id, n.known from {items} join names n on n.workspace = :workspace and n.name = items.name
order by n.name {postgres: for update of n}

-- name: find_names
-- The id of a merged submission leads to the task it was merged into.
-- rows items: name text
select n.name, coalesce(a.task_id, n.task_id) as task_id, n.known from {items} join names n on n.workspace = :workspace and n.name = items.name
left join aliases a on a.id = n.task_id

-- name: know_names
-- rows items: id uuid
update names set known = true where task_id in (select items.id from {items})

-- name: take_keys
-- rows items: workspace text, key text, task_id uuid, until float
insert into keys (workspace, key, task_id, until) select workspace, key, task_id, until from {items} where true
on conflict (workspace, key) do update set task_id = excluded.task_id, until = excluded.until
where keys.until is not null and keys.until <= :now
returning keys.key

-- name: read_keys
-- rows items: workspace text, key text
select k.workspace, k.key, k.task_id, t.status, t.root_id from {items} join keys k on k.workspace = items.workspace and k.key = items.key
left join tasks t on t.id = k.task_id

-- name: drop_keys
-- Leaving the scope frees the key if it still names this task.
-- rows items: workspace text, key text, task_id uuid
delete from keys where (workspace, key, task_id) in (select items.workspace, items.key, items.task_id from {items})

-- name: pass_keys
-- A new task takes the key of an ended one, if that still has it.
-- rows items: workspace text, key text, task_id uuid, heir uuid, until float
update keys set task_id = items.heir, until = items.until from {items}
where keys.workspace = items.workspace and keys.key = items.key and keys.task_id = items.task_id

-- name: insert_aliases
-- insert aliases: id uuid, workspace text, task_id uuid
on conflict do nothing

-- name: aliases_of
-- rows items: id uuid
select a.id, a.workspace, a.task_id from {items} join aliases a on a.id = items.id

-- name: alias_names
-- Other ids of these tasks, as their submitters wrote them.
-- rows items: id uuid
select a.task_id, n.name from {items} join aliases a on a.task_id = items.id join names n on n.task_id = a.id order by a.task_id, n.name

-- name: delete_aliases
-- rows items: id uuid
delete from aliases where task_id in (select items.id from {items})

-- name: drop_edges
-- rows items: dependent uuid, dependency uuid
delete from edges where (dependent, dependency) in (select items.dependent, items.dependency from {items})

-- name: move_keys
-- A newer row of the lineage takes the key, if the older one still had it.
-- rows items: workspace text, key text, task_id uuid, heir uuid
update keys set task_id = items.heir from {items}
where keys.workspace = items.workspace and keys.key = items.key and keys.task_id = items.task_id

-- name: open_edges_above
-- Every open edge that the given tasks wait on, directly or not, to name the cycle.
-- rows items: id uuid
with recursive up(dependent, dependency) as (
  select e.dependent, e.dependency from {items} join edges e on e.dependent = items.id and not e.satisfied
  union
  select e.dependent, e.dependency from up join edges e on e.dependent = up.dependency and not e.satisfied
) select dependent, dependency from up

-- name: edges_above
-- Open edges that these wait on, directly or not, the nearest first.
-- rows items: id uuid
with recursive up(dependent, dependency) as (
  select e.dependent, e.dependency from {items} join edges e on e.dependent = items.id and not e.satisfied
  union
  select e.dependent, e.dependency from up join edges e on e.dependent = up.dependency and not e.satisfied
) select dependent, dependency from up limit :count

-- name: insert_dags
-- insert dags: id uuid, workspace text, title text, created_by text, created_at float, status text, open int

-- name: insert_lanes
-- insert lanes: id int, signature text, workspace text, type text, capabilities json, models json, fallback json, rate float, target_agent_id text, mixed boolean, share int, serial text
on conflict do nothing

-- name: find_lanes
-- rows items: signature text
select l.* from {items} join lanes l on l.signature = items.signature

-- name: read_lanes
-- rows items: id int
select l.* from {items} join lanes l on l.id = items.id

-- name: next_lane_ids
select coalesce(max(case when id < :bound then id end), 0) as shared, coalesce(max(case when id >= :bound then id end), :bound) as targeted,
  (select count(*) from lanes l where l.workspace = :workspace and l.target_agent_id is null) as taken
from lanes
