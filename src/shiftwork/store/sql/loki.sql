-- name: waiting_for_files
-- What waits, the most urgent first. Looks through the workspace: asked at the start, and when as many as a file holds have gone.
select id from tasks where workspace = :workspace and status in ('pending', 'waiting_approval', 'ready', 'retrying')
order by priority, created_at, id limit :count

-- name: newest_for_files
-- What is held or has ended, the newest first. Asked at the start alone.
-- rows items: status text
select t.id from tasks t join {items} on items.status = t.status where t.workspace = :workspace order by t.updated_at desc, t.id desc limit :count

-- name: reviews_after
-- Decisions about dead letters with what they were about, oldest first.
select r.seq, r.task_id, r.at, r.actor, r.decision, r.note, t.external_id, t.type, a.error
from reviews r join tasks t on t.id = r.task_id
left join dead_letters a on a.task_id = r.task_id and a.round = r.round
where r.seq > :after and t.workspace = :workspace order by r.seq limit :count
