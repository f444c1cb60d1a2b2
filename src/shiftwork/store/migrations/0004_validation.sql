-- Outputs that wait for their verdict: one for each task that is validating.
create table outputs (
  task_id <uuid> primary key,
  fence <bigint> not null,
  judge_id <uuid>,
  result <json> not null,
  handed_in_at <float> not null
){lite: strict};
create unique index idx_outputs_judge on outputs (judge_id) where judge_id is not null;

-- Attempts that were handed in without the decision report they need, and go on until it comes.
create table missing_reports (
  task_id <uuid> primary key,
  fence <bigint> not null,
  at <float> not null
){lite: strict};
