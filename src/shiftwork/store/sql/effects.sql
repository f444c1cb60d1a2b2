-- name: take_effect
insert into effects (workspace, key, task_id, fence, begun_by, began_at)
values (:workspace, :key, :task, :fence, :begun_by, :now)
on conflict do nothing returning key

-- name: lock_effect
select * from effects where workspace = :workspace and key = :key {pg: for update}

-- name: read_effect
select * from effects where workspace = :workspace and key = :key

-- name: take_over_effect
update effects set task_id = :task, fence = :fence where workspace = :workspace and key = :key

-- name: finish_effect
update effects set done_at = :now, result = :result, resolved_by = :actor where workspace = :workspace and key = :key

-- name: drop_effect
delete from effects where workspace = :workspace and key = :key

-- name: open_effects
select key from effects where task_id = :task and done_at is null order by key

-- name: move_effects
-- What is not known to be done goes with the retry, which must find out.
update effects set task_id = :new, fence = 0 where task_id = :old and done_at is null

-- name: effect_with_key
select e.*, t.fence = e.fence and t.status in ('claimed', 'running') as held
from effects e left join tasks t on t.id = e.task_id where e.workspace = :workspace and e.key = :key

-- name: effects_of_task
-- (`|| ''` keeps SQLite from walking all effects of the workspace.)
select e.*, t.fence = e.fence and t.status in ('claimed', 'running') as held
from effects e left join tasks t on t.id = e.task_id
where e.task_id = :task and e.key > :after and e.workspace || '' = :workspace
  and (e.done_at is null or not cast(:open_only as {pg: boolean}{lite: integer}))
order by e.key limit :count

-- name: list_effects
select e.*, t.fence = e.fence and t.status in ('claimed', 'running') as held
from effects e left join tasks t on t.id = e.task_id where e.workspace = :workspace and e.key > :after
order by e.key limit :count

-- name: list_open_effects
select e.*, t.fence = e.fence and t.status in ('claimed', 'running') as held
from effects e left join tasks t on t.id = e.task_id
where e.workspace = :workspace and e.key > :after and e.done_at is null order by e.key limit :count

-- name: lineage_start
-- The task whose retries led to this one: itself, where it is no retry.
with recursive line (id, retry_of) as (
  select t.id, t.retry_of from tasks t where t.id = :id
  union all
  select t.id, t.retry_of from line join tasks t on t.id = line.retry_of
)
select id from line where retry_of is null

-- name: delete_effects
-- rows items: id uuid
delete from effects where task_id in (select items.id from {items})
