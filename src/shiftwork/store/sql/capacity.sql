-- name: tally
-- How many tasks wait, by level, in a workspace that limits them. Read from the index alone, however many have ended.
select case when priority < 30 then 'high' when priority < 60 then 'medium' else 'low' end as level, count(*) as total
from tasks where workspace = :workspace and tallied and status in ('pending', 'waiting_approval', 'ready', 'retrying') group by 1

-- name: tally_more_than
-- Whether more wait than this, without counting further.
select count(*) as total from (
  select 1 as one from tasks where workspace = :workspace and tallied and status in ('pending', 'waiting_approval', 'ready', 'retrying')
  limit :count
) as few

-- name: tally_workspace
-- A workspace begins to count what waits: also what is held or settled now, and may wait again.
update tasks set tallied = true where workspace = :workspace and not tallied and status not in ('completed', 'cancelled') returning id

-- name: givers
-- Tasks of one level and class, the oldest first, that may give up their places and that nobody works on just now.
-- What is pending and was claimed before is under way: it waits for its own subtasks, a person or a time.
select t.id from tasks t
where t.workspace = :workspace and case when t.priority < 30 then 'high' when t.priority < 60 then 'medium' else 'low' end = :level
  and t.tallied and t.status in ('pending', 'waiting_approval', 'ready', 'retrying') and (t.status = 'ready' or (t.status = 'pending' and t.fence = 0))
  and exists (select 1 from edges e where e.dependent = t.root_id) = :depends
  and (cast(:recent as {pg: boolean}{lite: integer}) is null or (t.created_at > :recent_from) = :recent)
  and (cast(:retried as {pg: boolean}{lite: integer}) is null or (t.attempts > 0) = :retried)
order by t.created_at, t.id limit :count {pg: for update of t skip locked}

-- name: displaced_workspaces
select distinct workspace as name from dead_letters where reason = 'displaced' and not reviewed order by 1

-- name: displaced_letters
select d.task_id from dead_letters d join tasks t on t.id = d.task_id and t.round = d.round
where d.workspace = :workspace and d.reason = 'displaced' and not d.reviewed and t.status = 'dead_lettered'
  and case when t.priority < 30 then 'high' when t.priority < 60 then 'medium' else 'low' end = :level
order by d.dead_lettered_at, d.task_id limit :count

-- name: read_conditions
select * from conditions where workspace = :workspace and kind = :kind order by subject

-- name: conditions_of_kind
select * from conditions where kind = :kind order by workspace, subject

-- name: save_conditions
-- rows items: workspace text, kind text, subject text, alert text
insert into conditions (workspace, kind, subject, alert, since)
select workspace, kind, subject, alert, cast(:now as {pg: double precision}{lite: real}) from {items} where true
on conflict (workspace, kind, subject) do update set alert = excluded.alert, since = excluded.since

-- name: drop_conditions
-- rows items: workspace text, kind text, subject text
delete from conditions where (workspace, kind, subject) in (select items.workspace, items.kind, items.subject from {items})

-- name: resolve_alerts
-- What they were raised about is over: nobody need look at them any more.
-- rows items: workspace text, kind text, subject text
update alerts set acknowledged_at = :now, acknowledged_by = :actor where acknowledged_at is null
  and (workspace, kind, data ->> 'subject') in (select items.workspace, items.kind, items.subject from {items})
