-- name: insert_waits
-- insert waits: root_id uuid, name text, task_id uuid, workspace text, kind text, status text, until float, began_at float, ended_at float, signal text, question text, schema json, value json, signal_seq bigint, answered_by text

-- name: read_wait
select * from waits where root_id = :root and name = :name

-- name: open_waits_of
-- rows items: id uuid
select w.* from {items} join waits w on w.root_id = items.id where w.status = 'open'

-- name: count_waiting
-- The number of open edges and open waits of each lineage.
-- rows items: id uuid
select items.id as root_id, (select count(*) from edges e where e.dependent = items.id and not e.satisfied)
  + (select count(*) from waits w where w.root_id = items.id and w.status = 'open') as open from {items}

-- name: end_waits
-- Ends open waits only, so that each counts once; a timer not before its time, which may have been moved.
-- rows items: root_id uuid, name text, status text, value json, answered_by text, signal_seq bigint
update waits set status = items.status, ended_at = :now, value = items.value, answered_by = items.answered_by,
  signal_seq = items.signal_seq
from {items} where waits.root_id = items.root_id and waits.name = items.name and waits.status = 'open'
  and (waits.kind <> 'time' or waits.until <= :now)
returning waits.root_id, waits.name

-- name: drop_wait
delete from waits where root_id = :root and name = :name

-- name: drop_open_waits
-- rows items: id uuid
delete from waits where root_id in (select items.id from {items}) and status = 'open'

-- name: drop_expired_waits
-- rows items: id uuid
delete from waits where root_id in (select items.id from {items}) and status = 'expired'

-- name: drop_ended_waits
-- rows items: id uuid
delete from waits where root_id in (select items.id from {items}) and status <> 'open'

-- name: delete_waits
-- rows items: id uuid
delete from waits where root_id in (select items.id from {items})

-- name: delete_waits_after
-- Waits that had not ended at that time.
delete from waits where root_id = :root and (status = 'open' or ended_at > :after)

-- name: due_waits
select root_id, name, kind from waits where status = 'open' and until <= :now order by until limit :count

-- name: insert_signal
insert into signals (at, workspace, name, root_id, actor, data) values (:now, :workspace, :name, :root, :actor, :data)
returning seq

-- name: read_signal
select * from signals where seq = :seq and workspace = :workspace

-- name: unsent_signals
select * from signals where not told order by seq limit :count

-- name: mark_signal_sent
update signals set told = true where seq = :seq

-- name: waits_for_signal
-- Waits for the signal that have not received it. A task that waits again after receiving it waits for the next one.
select w.root_id, w.name from waits w where w.workspace = :workspace and w.signal = :signal and w.status = 'open'
  and (w.until is null or w.until > :now)
  and (cast(:root as {postgres: uuid}{sqlite: text}) is null or w.root_id = :root)
  and not exists (select 1 from waits had where had.root_id = w.root_id and had.signal_seq = :seq)
order by w.root_id limit :count

-- name: signal_for
-- The first signal since the task was created or last rerun that it has not had.
select s.seq, s.data, s.actor from signals s where s.workspace = :workspace and s.name = :signal
  and (s.root_id is null or s.root_id = :root)
  and s.at >= (select max(t.created_at) from tasks t where t.id = :root or (t.root_id = :root and t.rerun_of is not null))
  and not exists (select 1 from waits had where had.root_id = :root and had.signal_seq = s.seq)
order by s.at, s.seq limit 1

-- name: delete_signals
delete from signals where seq in (select s.seq from signals s where s.at < :before and s.told order by s.at limit :count)
returning seq

-- name: ask_approvals
-- rows items: task_id uuid, revision text, root_id uuid, workspace text, rule json, requested_at float, expires_at float
insert into approvals (task_id, revision, root_id, workspace, rule, status, requested_at, expires_at)
select task_id, revision, root_id, workspace, rule, 'open', requested_at, expires_at from {items} where true
on conflict (task_id, revision) do update set rule = excluded.rule, status = 'open', requested_at = excluded.requested_at,
  expires_at = excluded.expires_at, decided_at = null, decided_by = null, note = null

-- name: granted_approval
select task_id from approvals where root_id = :root and revision = :revision and status = 'approved' limit 1

-- name: open_approvals_of
-- rows items: id uuid
select a.* from {items} join approvals a on a.task_id = items.id where a.status = 'open'

-- name: decide_approvals
-- rows items: task_id uuid, status text, note text
update approvals set status = items.status, decided_at = :now, decided_by = :actor, note = items.note
from {items} where approvals.task_id = items.task_id and approvals.status = 'open'

-- name: due_approvals
select task_id from approvals where status = 'open' and expires_at <= :now order by expires_at limit :count

-- name: delete_approvals
-- rows items: id uuid
delete from approvals where task_id in (select items.id from {items})

-- name: list_asked
-- Open requests to people, by task: approvals that guards require, and questions of agents.
select x.*, t.type, t.dag_id, t.version, t.estimated_cost, b.body from (
  select a.task_id, 'approval' as kind, a.requested_at as asked_at, a.expires_at, a.revision, a.rule,
    cast(null as text) as name, cast(null as text) as question, cast(null as {postgres: json}{sqlite: text}) as schema
  from approvals a where a.workspace = :workspace and a.status = 'open'
  union all
  select w.task_id, 'question' as kind, w.began_at as asked_at, w.until as expires_at, cast(null as text) as revision,
    cast(null as {postgres: json}{sqlite: text}) as rule, w.name, w.question, w.schema
  from waits w where w.workspace = :workspace and w.status = 'open' and w.question is not null
) x join tasks t on t.id = x.task_id join bodies b on b.task_id = x.task_id
where (cast(:kind as text) is null or x.kind = :kind) and (cast(:type as text) is null or t.type = :type)
  and (cast(:task as {postgres: uuid}{sqlite: text}) is null or x.task_id = :task)
  and (cast(:after as {postgres: uuid}{sqlite: text}) is null or x.task_id > :after)
order by x.task_id limit :count

-- name: ancestors_of
-- The number of tasks above one, each spawned by the next, counted up to a limit.
with recursive up(id, depth) as (
  select t.parent_id, 1 from tasks t where t.id = :id and t.parent_id is not null
  union all
  select t.parent_id, up.depth + 1 from up join tasks t on t.id = up.id where t.parent_id is not null and up.depth < :most
) select coalesce(max(depth), 0) as depth from up

-- name: count_subtasks
-- Retries and reruns of a subtask are the same subtask.
select count(*) as subtasks from tasks where parent_id = :id and retry_of is null and rerun_of is null
