-- name: read_search_mark
select read_to from search_marks where name = 'tasks'

-- name: lock_search_mark
-- Locked to write or remove entries, so that a process that read a task earlier does not write a removed entry again.
select read_to from search_marks where name = 'tasks' {postgres: for update}

-- name: add_search_mark
-- An emptied database has no mark.
insert into search_marks (name, read_to) values ('tasks', 0) on conflict do nothing

-- name: move_search_mark
update search_marks set read_to = :read_to where name = 'tasks'

-- name: changed_tasks
-- Tasks whose words may have changed, according to the log between two numbers; of one workspace or of all.
select e.task_id as id from single_events e
where e.row_seq > :after and e.row_seq <= :last_row and e.seq > :after and e.seq <= :last and e.task_id is not null
  and (cast(:workspace as text) is null or e.workspace = :workspace)
  and e.verb not in ('claimed', 'started', 'heartbeat', 'progress', 'message', 'session', 'usage', 'step', 'effect',
    'unblocked', 'promoted', 'handed_in', 'completed', 'waited', 'attached', 'published', 'withdrawn', 'yield_asked')

-- name: search_texts
-- The searchable texts of tasks, cut to a bounded length.
-- rows items: id uuid
select t.id, t.workspace, t.type, t.external_id, t.issue_id, t.failure_reason, t.cancel_reason,
  substr(b.body ->> 'title', 1, 2000) as title, b.body ->> 'tool_name' as tool_name,
  b.body ->> 'created_by' as created_by, substr(b.body ->> 'trigger_summary', 1, 2000) as trigger_summary,
  substr(cast(b.body -> 'payload' as text), 1, 20000) as payload,
  substr(cast(b.body -> 'spec' as text), 1, 20000) as spec,
  (select {postgres: string_agg(g.tag, ' ')}{sqlite: group_concat(g.tag, ' ')} from tags g where g.task_id = t.id) as tags,
  (select {postgres: string_agg(x.error, ' ')}{sqlite: group_concat(x.error, ' ')} from (
    select coalesce(a.reason, '') || ' ' || coalesce(substr(a.error, 1, 2000), '') as error from attempts a
    where a.task_id = t.id and a.outcome <> 'completed' order by a.fence desc limit 5) x) as errors
from {items} join tasks t on t.id = items.id join bodies b on b.task_id = t.id

-- name: save_search_entries
-- For tasks that still exist.
-- rows items: id uuid, tail text
insert into search_entries (task_id, workspace, tail)
select t.id, t.workspace, items.tail from {items} join tasks t on t.id = items.id where true
on conflict (task_id) do nothing

-- name: save_search_words
-- rows items: id uuid, words text
insert into search_words (task_id, words)
select e.task_id, array_to_tsvector(string_to_array(items.words, ' ')) from {items} join search_entries e on e.task_id = items.id
on conflict (task_id) do update set words = excluded.words

-- name: save_search_words (sqlite)
-- A full-text table has numbers for rows, and its text is not kept.
-- rows items: id uuid, words text
insert or replace into search_words (rowid, words)
select e.number, items.words from {items} join search_entries e on e.task_id = items.id

-- name: delete_search_words
-- rows items: id uuid
delete from search_words where task_id in (select items.id from {items})

-- name: delete_search_words (sqlite)
-- rows items: id uuid
delete from search_words where rowid in (select e.number from {items} join search_entries e on e.task_id = items.id)

-- name: delete_search_entries
-- rows items: id uuid
delete from search_entries where task_id in (select items.id from {items})

-- name: short_ids
-- Tasks whose id ends with these characters, up to one more than may be listed.
select e.task_id as id from search_entries e where e.workspace = :workspace and e.tail >= :low and e.tail < :high
order by e.tail limit :count

-- name: newest_ids
-- Tasks that the log names after a number, which may have no entry yet.
select e.task_id as id from single_events e
where e.row_seq > :after and e.seq > :after and e.workspace = :workspace and e.task_id is not null
