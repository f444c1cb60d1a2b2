-- What the operator of a server lets each workspace have.

-- name: read_quota
select * from quotas where workspace = :workspace

-- name: list_quotas
select * from quotas order by workspace

-- name: save_quota
insert into quotas (workspace, max_tasks, max_bytes, submits_per_minute, tasks, bytes, counted_at, room, filled_at, set_at, set_by)
values (:workspace, :max_tasks, :max_bytes, :submits_per_minute, :tasks, :bytes, :now, :room, :now, :now, :actor)
on conflict (workspace) do update set
  max_tasks = excluded.max_tasks, max_bytes = excluded.max_bytes, submits_per_minute = excluded.submits_per_minute,
  tasks = excluded.tasks, bytes = excluded.bytes, counted_at = excluded.counted_at, room = excluded.room,
  filled_at = excluded.filled_at, set_at = excluded.set_at, set_by = excluded.set_by

-- name: remove_quota
delete from quotas where workspace = :workspace

-- name: use_quota
update quotas set tasks = :tasks, bytes = :bytes, counted_at = :counted_at, room = :room, filled_at = :now
where workspace = :workspace

-- name: count_tasks_stored
select count(*) as total from tasks where workspace = :workspace

-- name: count_bytes_stored
select
  (select coalesce(sum({pg: octet_length(b.body::text)}{lite: length(b.body)}), 0)
     from tasks t join bodies b on b.task_id = t.id where t.workspace = :workspace)
  + (select coalesce(sum(size), 0) from artifacts where workspace = :workspace) as total
