-- What the payloads and results of a type must look like, and what its code asks for.

-- Changes with every type of the workspace, so that a process knows whether the types it has read are still those.
alter table workspaces add column types_version text;

-- `settings` and `limits` are what the code of the type asks for. `digest` stands for all that the code has declared;
-- `superseded` lists the digests it has replaced, newest first. What an operator has saved, no worker changes.
create table task_types (
  workspace text not null,
  name text not null,
  payload_schema <json>,
  result_schema <json>,
  settings <json> not null,
  limits <json> not null,
  digest text not null,
  superseded <json> not null,
  by_operator <boolean> not null,
  changed_at <float> not null,
  changed_by text not null,
  primary key (workspace, name)
){lite: strict};

-- What each agent declared when it last started: digests of the payload schema, the result schema and the options.
create table type_declarations (
  workspace text not null,
  name text not null,
  agent_id text not null,
  payload text not null,
  result text not null,
  options text not null,
  declared_at <float> not null,
  primary key (workspace, name, agent_id)
){lite: strict};
create index idx_type_declarations_agent on type_declarations (workspace, agent_id);
