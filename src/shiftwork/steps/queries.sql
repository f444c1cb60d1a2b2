-- name: read_step
select * from steps where task_id = :task and name = :name

-- name: last_step
select place from steps where task_id = :task order by place desc limit 1

-- name: list_steps
-- For steps in flight, with whether the claim that began them is still valid.
select s.*, t.fence = s.fence and t.status in ('claimed', 'running') as held
from steps s join tasks t on t.id = s.task_id
where s.task_id = :task and s.place > :after and t.workspace = :workspace order by s.place limit :count

-- name: save_step
insert into steps (task_id, name, place, fence, began_at, done_at, result, artifact, cost, tokens_in, tokens_out)
values (:task, :name, :place, :fence, :began_at, :done_at, :result, :artifact, :cost, :tokens_in, :tokens_out)
on conflict (task_id, name) do update set fence = excluded.fence, began_at = excluded.began_at, done_at = excluded.done_at,
  result = excluded.result, artifact = excluded.artifact, cost = excluded.cost, tokens_in = excluded.tokens_in, tokens_out = excluded.tokens_out

-- name: copy_steps
-- Copies finished steps to a retry. Fence 0 means that no claim of the new task has reported the step.
insert into steps (task_id, name, place, fence, began_at, done_at, result, artifact, cost, tokens_in, tokens_out)
select cast(:new as {postgres: uuid}{sqlite: text}), name, place, 0, began_at, done_at, result, artifact, cost, tokens_in, tokens_out
from steps where task_id = :old and done_at is not null

-- name: copy_step_artifacts
insert into artifact_uses (task_id, role, hash, name, workspace, at, actor)
select cast(:new as {postgres: uuid}{sqlite: text}), role, hash, name, workspace, at, actor
from artifact_uses where task_id = :old and role = 'step'

-- name: finished_steps
select name from steps where task_id = :task and done_at is not null order by place limit :count

-- name: copy_steps_before
-- A rerun from a step keeps the steps before it.
insert into steps (task_id, name, place, fence, began_at, done_at, result, artifact, cost, tokens_in, tokens_out)
select cast(:new as {postgres: uuid}{sqlite: text}), name, place, 0, began_at, done_at, result, artifact, cost, tokens_in, tokens_out
from steps where task_id = :old and done_at is not null and place < :place returning name

-- name: copy_artifacts_before
-- The results of those steps, and other artifacts of that time.
insert into artifact_uses (task_id, role, hash, name, workspace, at, actor)
select cast(:new as {postgres: uuid}{sqlite: text}), u.role, u.hash, u.name, u.workspace, u.at, u.actor from artifact_uses u
where u.task_id = :old and ((u.role = 'made' and u.at <= :before) or (u.role = 'step' and exists (
  select 1 from steps s where s.task_id = :old and s.name = u.name and s.done_at is not null and s.place < :place)))

-- name: copy_effects_before
-- Effects of this lineage under its own keys that were recorded by then count as done for the rerun, too.
insert into effects (workspace, key, task_id, fence, begun_by, began_at, done_at, result, resolved_by)
select e.workspace, cast(:prefix as text) || substr(e.key, cast(:length as {postgres: integer}{sqlite: integer}) + 1),
  cast(:new as {postgres: uuid}{sqlite: text}), 0, e.begun_by, e.began_at, e.done_at, e.result, e.resolved_by
from tasks t join effects e on e.task_id = t.id
where (t.id = :root or (t.root_id = :root and (t.retry_of is not null or t.rerun_of is not null)))
  and e.done_at <= :before and substr(e.key, 1, cast(:length as {postgres: integer}{sqlite: integer})) = :old_prefix
on conflict do nothing

-- name: delete_steps
-- rows items: id uuid
delete from steps where task_id in (select items.id from {items})

-- name: take_effect
insert into effects (workspace, key, task_id, fence, begun_by, began_at)
values (:workspace, :key, :task, :fence, :begun_by, :now)
on conflict do nothing returning key

-- name: lock_effect
select * from effects where workspace = :workspace and key = :key {postgres: for update}

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
-- Moves effects with an unknown outcome to the retry, which must find out.
update effects set task_id = :new, fence = 0 where task_id = :old and done_at is null

-- name: effect_with_key
select e.*, t.fence = e.fence and t.status in ('claimed', 'running') as held
from effects e left join tasks t on t.id = e.task_id where e.workspace = :workspace and e.key = :key

-- name: effects_of_task
-- (`|| ''` keeps SQLite from scanning all effects of the workspace.)
select e.*, t.fence = e.fence and t.status in ('claimed', 'running') as held
from effects e left join tasks t on t.id = e.task_id
where e.task_id = :task and e.key > :after and e.workspace || '' = :workspace
  and (e.done_at is null or not cast(:open_only as {postgres: boolean}{sqlite: integer}))
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
-- The first task of the chain of retries: the task itself if it is not a retry.
with recursive line (id, retry_of) as (
  select t.id, t.retry_of from tasks t where t.id = :id
  union all
  select t.id, t.retry_of from line join tasks t on t.id = line.retry_of
)
select id from line where retry_of is null

-- name: delete_effects
-- rows items: id uuid
delete from effects where task_id in (select items.id from {items})
