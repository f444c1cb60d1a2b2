-- name: touch_bridge
insert into bridges (workspace, name, role, seen_at) values (:workspace, :name, :role, :now)
on conflict (workspace, name) do update set role = excluded.role, seen_at = excluded.seen_at

-- name: list_bridges
select b.name, b.role, b.seen_at, b.events_after,
  (select count(*) from published p where p.workspace = b.workspace and p.bridge = b.name and not p.ended and p.consumer is null) as unread,
  (select count(*) from published p where p.workspace = b.workspace and p.bridge = b.name and not p.ended and p.consumer is not null) as taken,
  (select count(*) from taken_in i where i.workspace = b.workspace and i.bridge = b.name) as taken_in
from bridges b where b.workspace = :workspace order by b.name

-- name: mark_published
update bridges set events_after = :seq where workspace = :workspace and name = :name

-- name: insert_published
-- insert published: task_id uuid, number bigint, workspace text, bridge text, fence bigint, published_at float

-- name: hold_published
-- Hides tasks that are offered in a stream from claims; they stay ready.
-- rows items: id uuid
update tasks set hold = 'published', version = version + 1, updated_at = :now from {items} where tasks.id = items.id

-- name: count_unread
select count(*) as unread from published where workspace = :workspace and bridge = :bridge and not ended and consumer is null

-- name: unwritten
-- Published tasks whose stream entry is not written yet, with its content.
select p.task_id, p.number, t.type, t.idempotency_key, t.attempts, b.body from published p
join tasks t on t.id = p.task_id join bodies b on b.task_id = p.task_id
where p.workspace = :workspace and p.bridge = :bridge and not p.ended and p.message_id is null
order by p.published_at, t.rank, t.ordered_at, t.id

-- name: place_published
-- rows items: task_id uuid, number bigint, message_id text
update published set message_id = items.message_id from {items}
where published.task_id = items.task_id and published.number = items.number and not published.ended and published.message_id is null

-- name: lift_published
-- rows items: id uuid
update tasks set hold = null, version = version + 1, updated_at = :now from {items} where tasks.id = items.id

-- name: open_published
-- All tasks that are in the stream or belong there, with their current state.
select p.task_id, p.number, p.fence, p.message_id, p.consumer, p.published_at, p.delivered_at, p.ended,
  t.status, t.hold, t.fence as task_fence, t.version as task_version, t.type
from published p left join tasks t on t.id = p.task_id where p.workspace = :workspace and p.bridge = :bridge

-- name: lock_published
-- rows items: task_id uuid
select p.* from {items} join published p on p.task_id = items.task_id
where p.workspace = :workspace and p.bridge = :bridge and not p.ended order by p.task_id, p.number {postgres: for update of p}

-- name: rest_leases
-- Suspends the leases of these claims: only a bridge that reads the stream may end them, not the clock.
-- rows items: id uuid
update tasks set ack_by = null, run_until = null, lease_until = null, lease_check_at = null
from {items} where tasks.id = items.id

-- name: take_published
-- rows items: task_id uuid, number bigint, fence bigint
update published set fence = items.fence, consumer = :consumer, delivered_at = :now
from {items} where published.task_id = items.task_id and published.number = items.number

-- name: note_delivered
-- rows items: task_id uuid, number bigint
update published set delivered_at = :now from {items}
where published.task_id = items.task_id and published.number = items.number and published.delivered_at is null

-- name: end_published
-- rows items: task_id uuid, number bigint
update published set ended = true from {items}
where published.task_id = items.task_id and published.number = items.number

-- name: forget_published
-- rows items: task_id uuid, number bigint
delete from published where (task_id, number) in (select items.task_id, items.number from {items})

-- name: tried_by
-- Whether an attempt of this agent at this task has ended.
select 1 as tried from attempts where task_id = :id and agent_id = :agent limit 1

-- name: note_heard
-- Returns a row if the message is new.
insert into heard (workspace, bridge, stream, message_id, at) values (:workspace, :bridge, :stream, :message_id, :now)
on conflict do nothing returning message_id

-- name: forget_heard
delete from heard where at < :before

-- name: letters_to_write
-- Dead letters that are in no stream yet, oldest first.
select d.task_id, d.round, d.error, d.reason, d.attempts, d.dead_lettered_at, b.body from dead_letters d
join bodies b on b.task_id = d.task_id
where d.workspace = :workspace and not d.reviewed and not exists (
  select 1 from letter_entries e where e.task_id = d.task_id and e.round = d.round)
order by d.dead_lettered_at, d.task_id limit :count

-- name: insert_letter_entries
-- insert letter_entries: task_id uuid, round int, workspace text, bridge text, message_id text
on conflict do nothing

-- name: letters_to_remove
-- Entries of dead letters that were reviewed or deleted; abandoned ones stay.
select e.task_id, e.round, e.message_id from letter_entries e
left join dead_letters d on d.task_id = e.task_id and d.round = e.round
where e.workspace = :workspace and e.bridge = :bridge
  and (d.task_id is null or d.deleted or (d.reviewed and d.resolution <> 'abandon')) limit :count

-- name: letters_written
select e.task_id, e.round, e.message_id from letter_entries e where e.workspace = :workspace and e.bridge = :bridge

-- name: forget_letter_entries
-- rows items: task_id uuid, round int
delete from letter_entries where (task_id, round) in (select items.task_id, items.round from {items})

-- name: insert_taken_in
-- insert taken_in: workspace text, bridge text, message_id text, task_id uuid, entry json
on conflict do nothing

-- name: list_taken_in
select i.message_id, i.task_id, i.entry from taken_in i where i.workspace = :workspace and i.bridge = :bridge

-- name: answerable
-- Tasks of a foreign orchestrator that have ended here.
select i.message_id, i.task_id, i.entry from taken_in i left join tasks t on t.id = i.task_id
where i.workspace = :workspace and i.bridge = :bridge
  and (t.id is null or t.status in ('completed', 'cancelled', 'dead_lettered', 'failed')) limit :count

-- name: forget_taken_in
-- rows items: message_id text
delete from taken_in where workspace = :workspace and bridge = :bridge and message_id in (select items.message_id from {items})

-- name: ended_published
select p.task_id, p.number, p.message_id from published p where p.workspace = :workspace and p.bridge = :bridge and p.ended

-- name: anything_ready
-- Whether any claim could find work.
select 1 as ready from tasks where status = 'ready' and hold is null limit 1

-- name: waiting_for_files
-- Waiting tasks, the most urgent first. Scans the workspace, so it runs only at the start and when all tasks that fit
-- into the file have left it.
select id from tasks where workspace = :workspace and status in ('pending', 'waiting_approval', 'ready', 'retrying')
order by priority, created_at, id limit :count

-- name: newest_for_files
-- Claimed and ended tasks, the newest first. Runs only at the start.
-- rows items: status text
select t.id from tasks t join {items} on items.status = t.status where t.workspace = :workspace order by t.updated_at desc, t.id desc limit :count

-- name: reviews_after
-- Decisions about dead letters, with the letters, oldest first.
select r.seq, r.task_id, r.at, r.actor, r.decision, r.note, t.external_id, t.type, a.error
from reviews r join tasks t on t.id = r.task_id
left join dead_letters a on a.task_id = r.task_id and a.round = r.round
where r.seq > :after and t.workspace = :workspace order by r.seq limit :count
