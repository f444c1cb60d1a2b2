-- name: save_push_config
insert into a2a_push_configs (workspace, task_id, id, url, secrets, created_at, sent_version, attempts, next_at)
values (:workspace, :task_id, :id, :url, :secrets, :now, :version, 0, :now)
on conflict (workspace, task_id, id) do update set url = excluded.url, secrets = excluded.secrets, attempts = 0,
  next_at = excluded.next_at, ended_at = null, error = null

-- name: list_push_configs
select * from a2a_push_configs where workspace = :workspace and task_id = :task_id order by id limit :count

-- name: count_push_configs
select count(*) as number from a2a_push_configs where workspace = :workspace and task_id = :task_id and id <> :id

-- name: delete_push_config
delete from a2a_push_configs where workspace = :workspace and task_id = :task_id and id = :id returning id

-- name: due_push_configs
-- Configs whose task has changed since it was last sent; `take_push_config` takes one by setting its next attempt.
select p.*, t.version from a2a_push_configs p join tasks t on t.id = p.task_id
where p.ended_at is null and p.next_at <= :now and t.version <> p.sent_version order by p.next_at limit :count

-- name: take_push_config
update a2a_push_configs set next_at = :until, attempts = attempts + 1
where workspace = :workspace and task_id = :task_id and id = :id and ended_at is null and next_at <= :now returning attempts

-- name: record_push
-- Records the version that was sent, and the time of the next attempt.
update a2a_push_configs set sent_version = :version, attempts = :attempts, next_at = :next_at, ended_at = :ended_at, error = :error
where workspace = :workspace and task_id = :task_id and id = :id

-- name: delete_ended_push_configs
-- Including those whose task was deleted or archived: it no longer changes.
delete from a2a_push_configs where (ended_at is not null and ended_at < :before)
  or (created_at < :before and not exists (select 1 from tasks t where t.id = a2a_push_configs.task_id))
