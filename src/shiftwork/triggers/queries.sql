-- name: save_trigger
-- Inserts a trigger, or updates an existing one, which is locked.
insert into triggers (id, workspace, name, kind, source, template, overlap, secret, tick_at, next_at, after_seq, created_at,
  created_by, updated_at)
values (:id, :workspace, :name, :kind, :source, :template, :overlap, :secret, :tick_at, :next_at, :after_seq, :now, :actor, :now)
on conflict (id) do update set kind = excluded.kind, source = excluded.source, template = excluded.template,
  overlap = excluded.overlap, secret = excluded.secret, tick_at = excluded.tick_at, next_at = excluded.next_at,
  after_seq = excluded.after_seq, updated_at = excluded.updated_at,
  looked_at = case when cast(triggers.source as text) = cast(excluded.source as text) then triggers.looked_at end

-- name: find_trigger
select * from triggers where workspace = :workspace and name = :name

-- name: lock_trigger
select * from triggers where workspace = :workspace and name = :name {postgres: for update}

-- name: list_triggers
select * from triggers where workspace = :workspace and name > :after order by name limit :count

-- name: pause_trigger
update triggers set paused_at = :now, tick_at = null, next_at = null, updated_at = :now where id = :id

-- name: resume_trigger
-- Its files are recorded again as in the first scan.
update triggers set paused_at = null, tick_at = :tick_at, next_at = :next_at, after_seq = :after_seq, looked_at = null,
  updated_at = :now
where id = :id

-- name: delete_trigger
delete from triggers where id = :id

-- name: delete_firings_of
delete from firings where trigger_id = :id

-- name: delete_watched_files
delete from watched_files where trigger_id = :id

-- name: due_triggers
-- Reads only due triggers, however many schedules there are.
select id from triggers where next_at <= :now order by next_at limit :count

-- name: lock_due_trigger
-- Does not wait: the process that holds the lock fires the trigger.
select * from triggers where id = :id and next_at <= :now {postgres: for update skip locked}

-- name: lock_trigger_by_id
select * from triggers where id = :id {postgres: for update}

-- name: advance_trigger
update triggers set tick_at = :tick_at, next_at = :next_at where id = :id

-- name: count_firing
update triggers set fired = fired + 1, last_fired_at = :now where id = :id

-- name: tell_refusal
-- At most once a minute, so that a flood of forged deliveries does not fill the log.
update triggers set refused_at = :now where id = :id and (refused_at is null or refused_at <= :before) returning id

-- name: take_firing
insert into firings (trigger_id, key, at, outcome, tasks, depth) values (:trigger_id, :key, :now, 'skipped', '[]', :depth)
on conflict do nothing returning key

-- name: end_firing
update firings set outcome = :outcome, reason = :reason, tasks = :tasks, dag_id = :dag_id where trigger_id = :trigger_id and key = :key

-- name: read_firing
select * from firings where trigger_id = :trigger_id and key = :key

-- name: list_firings
select * from firings where trigger_id = :trigger_id order by at desc, key desc limit :count

-- name: unfinished_firing
-- The newest firing whose work has not ended. A standalone task has no DAG row, but its retries may be separate rows.
select f.dag_id from (
  select x.dag_id, x.at from firings x where x.trigger_id = :trigger_id order by x.at desc limit :count
) f
where exists (select 1 from dags d where d.id = f.dag_id and d.status = 'open')
  or (not exists (select 1 from dags d where d.id = f.dag_id) and (
    exists (select 1 from tasks t where t.id = f.dag_id
      and t.status in ('pending', 'waiting_approval', 'ready', 'claimed', 'running', 'validating', 'retrying'))
    or exists (select 1 from tasks t where t.dag_id = f.dag_id and t.dag_id <> t.id
      and t.status in ('pending', 'waiting_approval', 'ready', 'claimed', 'running', 'validating', 'retrying'))))
order by f.at desc limit 1

-- name: firing_depths
-- The depth of these DAGs in a chain of firings.
-- rows items: id uuid
select f.dag_id, max(f.depth) as depth from {items} join firings f on f.dag_id = items.id group by f.dag_id

-- name: delete_firings
delete from firings where (trigger_id, key) in (select trigger_id, key from firings where at < :before order by at limit :count)
returning key

-- name: following_triggers
-- Triggers that wait for events, for which the log must be read.
select * from triggers where kind in ('dag', 'event') and paused_at is null

-- name: read_trigger_cursor
select seq from trigger_cursor

-- name: move_trigger_cursor
insert into trigger_cursor (one, seq) values (1, :seq) on conflict (one) do update set seq = excluded.seq
where trigger_cursor.seq < excluded.seq

-- name: dag_titles
-- rows items: id uuid
select d.id, d.title from {items} join dags d on d.id = items.id

-- name: file_triggers
select * from triggers where kind = 'file' and paused_at is null order by id

-- name: note_first_look
-- Returns a row if its files were not scanned before.
update triggers set looked_at = :now where id = :id and looked_at is null returning id

-- name: watched_files
select path, sha256 from watched_files where trigger_id = :trigger_id

-- name: save_watched_file
-- If two servers see the same change, only one of them writes it.
insert into watched_files (trigger_id, path, sha256) values (:trigger_id, :path, :hash)
on conflict (trigger_id, path) do update set sha256 = excluded.sha256
where watched_files.sha256 is distinct from excluded.sha256 returning path

-- name: insert_watched_files
-- insert watched_files: trigger_id uuid, path text, sha256 text
on conflict do nothing
