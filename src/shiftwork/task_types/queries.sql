-- name: read_types
select * from task_types where workspace = :workspace order by name

-- name: save_type
insert into task_types (workspace, name, payload_schema, result_schema, settings, limits, digest, superseded, by_operator, changed_at, changed_by)
values (:workspace, :name, :payload_schema, :result_schema, :settings, :limits, :digest, :superseded, :by_operator, :now, :actor)
on conflict (workspace, name) do update set payload_schema = excluded.payload_schema, result_schema = excluded.result_schema,
  settings = excluded.settings, limits = excluded.limits, digest = excluded.digest, superseded = excluded.superseded,
  by_operator = excluded.by_operator, changed_at = excluded.changed_at, changed_by = excluded.changed_by

-- name: remove_type
delete from task_types where workspace = :workspace and name = :name returning name

-- name: renew_types
update workspaces set types_version = :version where name = :workspace

-- name: live_declarations
-- The declarations of agents that take work.
select d.* from type_declarations d join agents a on a.workspace = d.workspace and a.id = d.agent_id
where d.workspace = :workspace and a.status in ('active', 'draining') order by d.name, d.agent_id

-- name: drop_declarations
-- Deletes the declarations of this agent and of agents that have ended.
delete from type_declarations where workspace = :workspace and (agent_id = :agent_id or agent_id in (
  select a.id from agents a where a.workspace = :workspace and a.status = 'offline'))

-- name: insert_declarations
-- insert type_declarations: workspace text, name text, agent_id text, payload text, result text, options text, declared_at float

-- name: drop_declarations_of_type
delete from type_declarations where workspace = :workspace and name = :name
