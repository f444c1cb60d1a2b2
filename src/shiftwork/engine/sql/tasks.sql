-- name: insert_events
-- insert events: at float, workspace text, task_id uuid, dag_id uuid, verb text, path text, actor text, request_id text, fence bigint, reason text, data json

-- name: insert_event_batch
-- One event for many tasks of one type, each a DAG of its own; `seconds` is how long each had waited or run.
-- rows items: task_id uuid, fence bigint, seconds float
insert into events (at, workspace, task_id, dag_id, verb, path, actor, request_id, fence, data, type, seconds)
select :at, :workspace, items.task_id, items.task_id, :verb, :path, :actor, :request_id, items.fence, :data, :type, items.seconds from {items}

-- name: insert_attempts
-- insert attempts: task_id uuid, fence bigint, round int, agent_id text, runtime_id text, claimed_at float, started_at float, ended_at float, outcome text, counted boolean, reason text, error text, note text, cost bigint, granted bigint, result json, verdict json

-- name: insert_accepted
-- The attempts ended by `complete_tasks`; the task rows still hold the claims.
-- rows items: id uuid, result json, verdict json
insert into attempts (task_id, fence, round, agent_id, runtime_id, claimed_at, started_at, ended_at, outcome, counted, cost,
  granted, result, verdict)
select t.id, t.fence, t.round, t.last_agent_id, t.last_runtime_id, t.claimed_at, t.started_at, cast(:now as {postgres: double precision}{sqlite: real}),
  'completed', false, t.attempt_cost, 0, items.result, items.verdict
from {items} join tasks t on t.id = items.id

-- name: lock_tasks
-- Locks rows in id order, so that concurrent batches cannot deadlock.
-- rows items: id uuid
select t.* from {items} join tasks t on t.id = items.id order by t.id {postgres: for update of t}

-- name: read_tasks
-- rows items: id uuid
select t.* from {items} join tasks t on t.id = items.id order by t.id

-- name: save_tasks
-- own rows: those that the unit of work has locked.
-- Every column a verb may change, for rows it has locked.
-- save tasks by id uuid: status text, hold text, lane int, rank float, ordered_at float, rerank_at float, priority float, deadline float, path_weight int, front boolean, newest_id uuid, waiting int, blocked_reason text, block_check_at float, attempts int, max_attempts int, reclaims int, rate_limits int, round int, version bigint, agent_id text, runtime_id text, claimed_at float, started_at float, heartbeat_at float, ack_by float, run_until float, lease_until float, lease_check_at float, available_at float, last_agent_id text, last_runtime_id text, lost_agent_id text, timeout_sec float, estimated_cost bigint, charged boolean, granted bigint, cost bigint, attempt_cost bigint, tokens_in bigint, tokens_out bigint, session_id text, work_dir text, failure_reason text, cancel_reason text, updated_at float, expires_at float, due_at float, finished_at float, own_settings boolean, validation text, at_most_once boolean, target_agent_id text

-- name: add_usage
-- Of live claims, in one status or any; returns the row afterwards.
-- rows items: id uuid, fence bigint, cost bigint, tokens_in bigint, tokens_out bigint
update tasks set attempt_cost = attempt_cost + items.cost, tokens_in = tasks.tokens_in + items.tokens_in,
  tokens_out = tasks.tokens_out + items.tokens_out
from {items} where tasks.id = items.id and tasks.fence = items.fence and tasks.agent_id is not null
  and (cast(:status as text) is null or tasks.status || '' = :status)
  and (cast(:workspace as text) is null or tasks.workspace = :workspace)
  and (cast(:holder as text) is null or tasks.holder = :holder)
returning tasks.id, tasks.fence, workspace, type, dag_id, agent_id, claimed_at, estimated_cost, charged, granted, attempt_cost,
  tasks.tokens_in, tasks.tokens_out

-- name: read_bodies
-- rows items: id uuid
select b.task_id, b.body from {items} join bodies b on b.task_id = items.id

-- name: save_bodies
-- save bodies by task_id uuid: body json

-- name: names_in_use
-- rows items: id uuid
select t.id from {items} join tasks t on t.id = items.id

-- name: failed_agents
-- Agents of the counted failures of a task's current round, including rows that it was retried from.
with recursive tried(id, round, retry_of) as (
  select t.id, t.round, t.retry_of from tasks t where t.id = :id
  union all
  select t.id, t.round, t.retry_of from tried join tasks t on t.id = tried.retry_of where tried.round = 1
)
select a.agent_id from tried join attempts a on a.task_id = tried.id and a.round = tried.round where a.counted

-- name: read_attempts
-- rows items: id uuid
select a.* from {items} join attempts a on a.task_id = items.id order by a.task_id, a.fence

-- name: read_attempt
select a.*, t.workspace, t.type, t.dag_id from attempts a join tasks t on t.id = a.task_id where a.task_id = :id and a.fence = :fence
  and (cast(:workspace as text) is null or t.workspace = :workspace)

-- name: book_late_usage
update attempts set cost = cost + :cost, granted = :granted where task_id = :id and fence = :fence

-- name: add_late_cost
update tasks set cost = cost + :cost, tokens_in = tokens_in + :tokens_in, tokens_out = tokens_out + :tokens_out,
  version = version + 1, updated_at = :now where id = :id

-- name: delete_tasks
-- rows items: id uuid
delete from tasks where id in (select items.id from {items})

-- name: delete_bodies
-- rows items: id uuid
delete from bodies where task_id in (select items.id from {items})

-- name: delete_tags
-- rows items: id uuid
delete from tags where task_id in (select items.id from {items})

-- name: delete_progress
-- rows items: id uuid
delete from progress where task_id in (select items.id from {items})

-- name: delete_attempts
-- rows items: id uuid
delete from attempts where task_id in (select items.id from {items})

-- name: delete_dead_letters
-- rows items: id uuid
delete from dead_letters where task_id in (select items.id from {items})

-- name: delete_names
-- rows items: id uuid
delete from names where task_id in (select items.id from {items} union all
                                    select a.id from {items} join aliases a on a.task_id = items.id)

-- name: delete_own_edges
-- rows items: id uuid
delete from edges where dependent in (select items.id from {items})

-- name: insert_tombstones
-- insert tombstones: task_id uuid, workspace text, at float, actor text, reason text
on conflict do nothing
