-- What an agent last asked for, and when: a task waits for a better agent only while that agent asks for such work.
alter table agents add column asked_at <float>;
alter table agents add column asked <json>;

-- How far an agent has looked at a lane of which nothing fitted it: its next claim goes on behind that place. Lane 0 stands
-- for all lanes in the order of creation. `wants` names what was asked for.
create table places (
  workspace text not null,
  agent_id text not null,
  wants text not null,
  lane <int> not null,
  rank <float> not null,
  ordered_at <float> not null,
  task_id <uuid> not null,
  at <float> not null,
  primary key (workspace, agent_id, wants, lane)
){lite: strict};

-- The deadline whose passing was announced: one that is moved passes again.
alter table tasks add column passed_deadline <float>;
create index idx_tasks_deadline on tasks (deadline) where deadline is not null
  and (passed_deadline is null or passed_deadline <> deadline)
  and status in ('pending', 'waiting_approval', 'ready', 'claimed', 'running', 'validating', 'retrying');
