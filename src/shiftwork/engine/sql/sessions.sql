-- name: read_session
select * from sessions where root_id = :root and session_id = :session

-- name: handed_session
-- The session that the task's holder was given, or has pinned since.
select t.session_id, s.task_id, s.fence, s.resumed, s.failed_resumes
from tasks t left join sessions s on s.root_id = t.root_id and s.session_id = t.session_id
where t.id = :id and t.session_id is not null

-- name: insert_sessions
-- insert sessions: root_id uuid, session_id text, task_id uuid, fence bigint, resumed boolean, failed_resumes int, retired_at float
on conflict (root_id, session_id) do update set failed_resumes = excluded.failed_resumes, retired_at = excluded.retired_at

-- name: delete_sessions
-- rows items: id uuid
delete from sessions where root_id in (select items.id from {items})
