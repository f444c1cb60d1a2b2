-- What has been counted of the log, so that any server tells the same and verbs pay nothing for it.

-- One row for each series, its labels as a JSON list in the order of the catalogue. A histogram has a row for each bucket
-- (its bound is the last label, not cumulated) and one for the sum of what was observed (`sum`).
create table meters (
  workspace text not null,
  name text not null,
  labels text not null,
  value <float> not null,
  moved_at <float> not null,
  primary key (workspace, name, labels)
){lite: strict};

-- How far the log is counted, and up to where it is whole: nothing more will be committed there. What stands up to
-- `seen_to` is whole once none of the `writers` that were under way when it was seen still is. Costs of attempts claimed
-- before `costs_to` are counted.
create table meter_marks (
  name text primary key,
  folded_to <bigint> not null,
  whole_to <bigint> not null,
  seen_to <bigint> not null,
  writers <json> not null,
  costs_to <float> not null
){lite: strict};

create table metric_snapshots (
  workspace text not null,
  at <float> not null,
  samples <json> not null,
  primary key (workspace, at)
){lite: strict};
