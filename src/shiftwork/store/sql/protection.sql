-- name: close_until
-- A gate that opens by itself. One that is closed for longer stays so.
-- rows items: workspace text, scope text, kind text, agent_id text, reason text, until float
insert into gates (workspace, scope, kind, agent_id, reason, closed_at, closed_by, until)
select workspace, scope, kind, agent_id, reason, cast(:now as {pg: double precision}{lite: real}), cast(:actor as text), until from {items} where true
on conflict (workspace, scope, kind, agent_id) do update set reason = excluded.reason, closed_at = excluded.closed_at,
  closed_by = excluded.closed_by, until = excluded.until, told = false
where gates.until is not null and (excluded.until is null or excluded.until > gates.until)

-- name: move_gates
-- The same whatever stood there before.
-- rows items: workspace text, scope text, kind text, agent_id text, reason text, until float
insert into gates (workspace, scope, kind, agent_id, reason, closed_at, closed_by, until)
select workspace, scope, kind, agent_id, reason, cast(:now as {pg: double precision}{lite: real}), cast(:actor as text), until from {items} where true
on conflict (workspace, scope, kind, agent_id) do update set reason = excluded.reason, closed_at = excluded.closed_at,
  closed_by = excluded.closed_by, until = excluded.until, told = false

-- name: open_gates
-- For everybody they were closed to.
-- rows items: workspace text, scope text, kind text
delete from gates where (workspace, scope, kind) in (select items.workspace, items.scope, items.kind from {items})
returning workspace, scope, kind

-- name: due_gates
-- Those whose time has come, and nobody was told.
select * from gates where until <= :now and not told order by until, workspace, scope, kind, agent_id limit :count
{pg: for update skip locked}

-- name: drop_gates
-- rows items: workspace text, scope text, kind text, agent_id text
delete from gates where (workspace, scope, kind, agent_id) in (
  select items.workspace, items.scope, items.kind, items.agent_id from {items})

-- name: mark_gates_told
-- rows items: workspace text, scope text, kind text, agent_id text
update gates set told = true where (workspace, scope, kind, agent_id) in (
  select items.workspace, items.scope, items.kind, items.agent_id from {items})

-- name: add_breakers
-- rows items: workspace text, type text
insert into breakers (workspace, type) select workspace, type from {items} where true on conflict do nothing

-- name: lock_breakers
-- rows items: workspace text, type text
select b.* from {items} join breakers b on b.workspace = items.workspace and b.type = items.type
order by b.workspace, b.type {pg: for update of b}

-- name: list_breakers
select * from breakers where workspace = :workspace order by type

-- name: save_breakers
-- rows items: workspace text, type text, state text, failures int, last_failure float, opened_at float, half_open_at float, probe_task uuid, probe_fence bigint, probe_until float
update breakers set state = items.state, failures = items.failures, last_failure = items.last_failure,
  opened_at = items.opened_at, half_open_at = items.half_open_at, probe_task = items.probe_task,
  probe_fence = items.probe_fence, probe_until = items.probe_until
from {items} where breakers.workspace = items.workspace and breakers.type = items.type

-- name: list_limits
select * from limits where workspace = :workspace order by key

-- name: lock_limits
-- rows items: workspace text, key text
select l.* from {items} join limits l on l.workspace = items.workspace and l.key = items.key
order by l.workspace, l.key {pg: for update of l}

-- name: set_limit
insert into limits (workspace, key, terms, held, cells, set_at, set_by) values (:workspace, :key, :terms, 0, :cells, :now, :actor)
on conflict (workspace, key) do update set terms = excluded.terms, cells = excluded.cells, set_at = excluded.set_at,
  set_by = excluded.set_by

-- name: save_limits
-- rows items: workspace text, key text, held int, cells json
update limits set held = items.held, cells = items.cells from {items}
where limits.workspace = items.workspace and limits.key = items.key

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

-- name: models_of
-- rows items: id uuid
select m.task_id, m.fence, m.model from {items} join claim_models m on m.task_id = items.id

-- name: delete_claim_models
-- rows items: id uuid
delete from claim_models where task_id in (select items.id from {items})
