-- name: close_until
-- Closes a gate until a time. One that is already closed for longer keeps its time.
-- rows items: workspace text, scope text, kind text, agent_id text, reason text, until float
insert into gates (workspace, scope, kind, agent_id, reason, closed_at, closed_by, until)
select workspace, scope, kind, agent_id, reason, cast(:now as {postgres: double precision}{sqlite: real}), cast(:actor as text), until from {items} where true
on conflict (workspace, scope, kind, agent_id) do update set reason = excluded.reason, closed_at = excluded.closed_at,
  closed_by = excluded.closed_by, until = excluded.until, told = false
where gates.until is not null and (excluded.until is null or excluded.until > gates.until)

-- name: move_gates
-- The same, replacing any earlier time.
-- rows items: workspace text, scope text, kind text, agent_id text, reason text, until float
insert into gates (workspace, scope, kind, agent_id, reason, closed_at, closed_by, until)
select workspace, scope, kind, agent_id, reason, cast(:now as {postgres: double precision}{sqlite: real}), cast(:actor as text), until from {items} where true
on conflict (workspace, scope, kind, agent_id) do update set reason = excluded.reason, closed_at = excluded.closed_at,
  closed_by = excluded.closed_by, until = excluded.until, told = false

-- name: open_gates
-- Opens gates for all agents.
-- rows items: workspace text, scope text, kind text
delete from gates where (workspace, scope, kind) in (select items.workspace, items.scope, items.kind from {items})
returning workspace, scope, kind

-- name: due_gates
-- Gates that are due and not announced yet.
select * from gates where until <= :now and not told order by until, workspace, scope, kind, agent_id limit :count
{postgres: for update skip locked}

-- name: drop_gates
-- rows items: workspace text, scope text, kind text, agent_id text
delete from gates where (workspace, scope, kind, agent_id) in (
  select items.workspace, items.scope, items.kind, items.agent_id from {items})

-- name: mark_gates_announced
-- rows items: workspace text, scope text, kind text, agent_id text
update gates set told = true where (workspace, scope, kind, agent_id) in (
  select items.workspace, items.scope, items.kind, items.agent_id from {items})

-- name: add_breakers
-- rows items: workspace text, type text
insert into breakers (workspace, type) select workspace, type from {items} where true on conflict do nothing

-- name: lock_breakers
-- rows items: workspace text, type text
select b.* from {items} join breakers b on b.workspace = items.workspace and b.type = items.type
order by b.workspace, b.type {postgres: for update of b}

-- name: list_breakers
select * from breakers where workspace = :workspace order by type

-- name: save_breakers
-- own rows: `lock_breakers` has locked them.
-- save breakers by workspace text, type text: state text, failures int, last_failure float, opened_at float, half_open_at float, probe_task uuid, probe_fence bigint, probe_until float

-- name: list_limits
select * from limits where workspace = :workspace order by key

-- name: lock_limits
-- rows items: workspace text, key text
select l.* from {items} join limits l on l.workspace = items.workspace and l.key = items.key
order by l.workspace, l.key {postgres: for update of l}

-- name: set_limit
insert into limits (workspace, key, terms, held, cells, set_at, set_by) values (:workspace, :key, :terms, 0, :cells, :now, :actor)
on conflict (workspace, key) do update set terms = excluded.terms, cells = excluded.cells, set_at = excluded.set_at,
  set_by = excluded.set_by

-- name: save_limits
-- save limits by workspace text, key text: held int, cells json

-- name: remove_limit
delete from limits where workspace = :workspace and key = :key returning key

-- name: drop_limit_claims
delete from limit_claims where workspace = :workspace and key = :key

-- name: insert_limit_claims
-- insert limit_claims: task_id uuid, fence bigint, workspace text, key text, at float, tokens bigint, used_before bigint

-- name: end_limit_claims
-- rows items: id uuid, fence bigint
delete from limit_claims where (task_id, fence) in (select items.id, items.fence from {items})
returning task_id, fence, workspace, key, at, tokens, used_before

-- name: save_claim_models
-- rows items: id uuid, fence bigint, model text
insert into claim_models (task_id, fence, model) select id, fence, model from {items} where true
on conflict (task_id) do update set fence = excluded.fence, model = excluded.model

-- name: handed_with_claims
-- The model and account assigned with the last claim of these tasks, if any.
-- rows items: id uuid
select t.id as task_id, t.fence, m.model, c.account from {items} join tasks t on t.id = items.id
left join claim_models m on m.task_id = t.id and m.fence = t.fence
left join claim_accounts c on c.task_id = t.id and c.fence = t.fence
where m.model is not null or c.account is not null

-- name: delete_claim_models
-- rows items: id uuid
delete from claim_models where task_id in (select items.id from {items})

-- name: tally
-- The number of waiting tasks by level, in a workspace that limits them. Uses only the index, however many have ended.
select case when priority < 30 then 'high' when priority < 60 then 'medium' else 'low' end as level, count(*) as total
from tasks where workspace = :workspace and tallied and status in ('pending', 'waiting_approval', 'ready', 'retrying') group by 1

-- name: tally_more_than
-- Whether more wait than this, without counting further.
select count(*) as total from (
  select 1 as one from tasks where workspace = :workspace and tallied and status in ('pending', 'waiting_approval', 'ready', 'retrying')
  limit :count
) as few

-- name: tally_workspace
-- Begins to count a workspace's waiting tasks, including claimed or settled ones, which may wait again.
update tasks set tallied = true where workspace = :workspace and not tallied and status not in ('completed', 'cancelled') returning id

-- name: displaceable
-- Tasks of one level and class, the oldest first, that may be displaced and are not locked.
-- A pending task that was claimed before is in progress: it waits for its own subtasks, a person or a time.
select t.id from tasks t
where t.workspace = :workspace and case when t.priority < 30 then 'high' when t.priority < 60 then 'medium' else 'low' end = :level
  and t.tallied and t.status in ('pending', 'waiting_approval', 'ready', 'retrying') and (t.status = 'ready' or (t.status = 'pending' and t.fence = 0))
  and exists (select 1 from edges e where e.dependent = t.root_id) = :depends
  and (cast(:recent as {postgres: boolean}{sqlite: integer}) is null or (t.created_at > :recent_from) = :recent)
  and (cast(:retried as {postgres: boolean}{sqlite: integer}) is null or (t.attempts > 0) = :retried)
order by t.created_at, t.id limit :count {postgres: for update of t skip locked}

-- name: displaced_workspaces
select distinct workspace as name from dead_letters where reason = 'displaced' and not reviewed order by 1

-- name: displaced_letters
-- `|| ''` keeps the planner from starting with all tasks that wait.
select d.task_id from dead_letters d join tasks t on t.id = d.task_id and t.round = d.round
where d.workspace = :workspace and d.reason = 'displaced' and not d.reviewed and t.status || '' = 'dead_lettered'
  and case when t.priority < 30 then 'high' when t.priority < 60 then 'medium' else 'low' end = :level
order by d.dead_lettered_at, d.task_id limit :count

-- name: read_conditions
select * from conditions where workspace = :workspace and kind = :kind order by subject

-- name: conditions_of_kind
select * from conditions where kind = :kind order by workspace, subject

-- name: save_conditions
-- rows items: workspace text, kind text, subject text, alert text
insert into conditions (workspace, kind, subject, alert, since)
select workspace, kind, subject, alert, cast(:now as {postgres: double precision}{sqlite: real}) from {items} where true
on conflict (workspace, kind, subject) do update set alert = excluded.alert, since = excluded.since

-- name: drop_conditions
-- rows items: workspace text, kind text, subject text
delete from conditions where (workspace, kind, subject) in (select items.workspace, items.kind, items.subject from {items})

-- name: resolve_alerts
-- The cause of these alerts is over.
-- rows items: workspace text, kind text, subject text
update alerts set acknowledged_at = :now, acknowledged_by = :actor where acknowledged_at is null
  and (workspace, kind, data ->> 'subject') in (select items.workspace, items.kind, items.subject from {items})

-- The quotas that the operator of a server sets.

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
  (select coalesce(sum({postgres: octet_length(b.body::text)}{sqlite: length(b.body)}), 0)
     from tasks t join bodies b on b.task_id = t.id where t.workspace = :workspace)
  + (select coalesce(sum(size), 0) from artifacts where workspace = :workspace) as total
