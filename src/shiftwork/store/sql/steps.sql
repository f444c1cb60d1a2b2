-- name: read_step
select * from steps where task_id = :task and name = :name

-- name: last_step
select place from steps where task_id = :task order by place desc limit 1

-- name: list_steps
-- Those in flight with whether the claim that began them still holds.
select s.*, t.fence = s.fence and t.status in ('claimed', 'running') as held
from steps s join tasks t on t.id = s.task_id
where s.task_id = :task and s.place > :after and t.workspace = :workspace order by s.place limit :count

-- name: save_step
insert into steps (task_id, name, place, fence, began_at, done_at, result, artifact, cost, tokens_in, tokens_out)
values (:task, :name, :place, :fence, :began_at, :done_at, :result, :artifact, :cost, :tokens_in, :tokens_out)
on conflict (task_id, name) do update set fence = excluded.fence, began_at = excluded.began_at, done_at = excluded.done_at,
  result = excluded.result, artifact = excluded.artifact, cost = excluded.cost, tokens_in = excluded.tokens_in, tokens_out = excluded.tokens_out

-- name: copy_steps
-- What a task has done goes with its retry. Fence 0: no claim of the new task has reported it.
insert into steps (task_id, name, place, fence, began_at, done_at, result, artifact, cost, tokens_in, tokens_out)
select cast(:new as {pg: uuid}{lite: text}), name, place, 0, began_at, done_at, result, artifact, cost, tokens_in, tokens_out
from steps where task_id = :old and done_at is not null

-- name: copy_step_artifacts
insert into artifact_uses (task_id, role, hash, name, workspace, at, actor)
select cast(:new as {pg: uuid}{lite: text}), role, hash, name, workspace, at, actor
from artifact_uses where task_id = :old and role = 'step'

-- name: delete_steps
-- rows items: id uuid
delete from steps where task_id in (select items.id from {items})
