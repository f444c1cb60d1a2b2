-- What the operator of a server lets each workspace have. Null is no limit.

-- `tasks` and `bytes` are what was counted at `counted_at` and has come since, so never less than there is. `room` is how
-- many tasks may be submitted at `filled_at` under the rate.
create table quotas (
  workspace text primary key,
  max_tasks <bigint>,
  max_bytes <bigint>,
  submits_per_minute <bigint>,
  tasks <bigint> not null,
  bytes <bigint> not null,
  counted_at <float> not null,
  room <float> not null,
  filled_at <float> not null,
  set_at <float> not null,
  set_by text not null
){lite: strict};
