-- name: start_tasks
-- own rows: `lock_claims` has locked them.
-- rows items: id uuid, run_until float, lease_until float, lease_check_at float
update tasks set status = 'running', started_at = :now, heartbeat_at = :now, ack_by = null, run_until = items.run_until,
  lease_until = items.lease_until, lease_check_at = items.lease_check_at, version = version + 1, updated_at = :now
from {items} where tasks.id = items.id

-- name: beat_tasks
-- own rows: `lock_claims` has locked them.
-- Changes no indexed column and no version, so that a heartbeat is the cheapest possible write.
-- rows items: id uuid
update tasks set heartbeat_at = :now from {items} where tasks.id = items.id

-- name: save_progress
-- rows items: task_id uuid, value json
insert into progress (task_id, at, value) select task_id, cast(:now as {postgres: double precision}{sqlite: real}), value from {items} where true
on conflict (task_id) do update set at = excluded.at, value = excluded.value

-- name: pin_sessions
-- rows items: id uuid, session_id text, work_dir text
update tasks set session_id = coalesce(items.session_id, tasks.session_id), work_dir = coalesce(items.work_dir, tasks.work_dir),
  version = version + 1, updated_at = :now
from {items} where tasks.id = items.id

-- name: lock_claims
-- The few columns that ending an attempt needs, in id order.
-- rows items: id uuid
select t.id, t.workspace, t.type, t.status, t.dag_id, t.root_id, t.fence, t.round, t.agent_id, t.runtime_id, t.claimed_at,
  t.started_at, t.granted, t.attempt_cost, t.validation, t.own_settings, t.idempotency_key, t.cancel_reason, t.timeout_sec,
  t.heartbeat_at, t.holder, t.failure_reason
from {items} join tasks t on t.id = items.id order by t.id {postgres: for update of t}
