-- Workspaces that were moved into this database or out of it, or are being moved. `peer` is the other database, by its name in
-- the map; a workspace without a row here has never moved. The highest generation of all databases says who owns a workspace.
-- `first_event` is the number after which the jobs of the database it came from had not read its events yet.
create table routes (
  workspace text primary key,
  generation <bigint> not null,
  state text not null check (state in ('here', 'leaving', 'left', 'arriving')),
  peer text not null,
  last_event <bigint> not null default 0,
  first_event <bigint>,
  changed_at <float> not null
){lite: strict};
