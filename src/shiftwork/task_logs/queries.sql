-- name: status_of_task
-- Including archived tasks.
select t.status from tasks t where t.id = :id and t.workspace = :workspace
union all
select a.status from archive a where a.id = :id and a.workspace = :workspace
limit 1

-- name: messages_after
-- Otherwise, SQLite would scan all events of the task, of which few may be messages.
select e.seq, e.at, e.fence, e.actor, e.data from events e {sqlite: indexed by idx_events_messages}
where e.task_id = :id and e.verb = 'message' and e.seq > :after order by e.seq limit :count

-- name: delete_messages
-- rows items: id uuid
delete from events where verb = 'message' and task_id in (select items.id from {items})

-- name: log_sizes
-- rows items: id uuid
select l.task_id, l.size from {items} join log_sizes l on l.task_id = items.id

-- name: save_log_sizes
-- rows items: task_id uuid, size bigint
insert into log_sizes (task_id, size) select task_id, size from {items} where true
on conflict (task_id) do update set size = excluded.size

-- name: delete_log_sizes
-- rows items: id uuid
delete from log_sizes where task_id in (select items.id from {items})
