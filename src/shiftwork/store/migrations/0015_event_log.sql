-- The view `event_log` says how every task ended: cancelled and rejected ones are failures of the Redis protocol, and an
-- entry that cannot be understood is a dead letter, as the HTTP view has it.
drop view event_log;
create view event_log as
  select e.seq as id, <at e.at> as at,
    n.name as event_type, e.task_id, replace(e.actor, 'agent:', '') as worker,
    case when n.name = 'task.failed' then e.path like '%dead_lettered' or e.path like '%failed' end as final,
    e.reason, e.data, n.part
  from events e join (
    select 'submitted' as verb, 'task.created' as name, 1 as part union all
    select 'spawned', 'task.created', 1 union all
    select 'rerun', 'task.created', 1 union all
    select 'claimed', 'task.claimed', 1 union all
    select 'claimed', 'task.reclaimed', 2 union all
    select 'completed', 'task.succeeded', 1 union all
    select 'failed', 'task.failed', 1 union all
    select 'failed', 'task.dlq', 2 union all
    select 'displaced', 'task.dlq', 1 union all
    select 'entry_refused', 'task.dlq', 1 union all
    select 'heartbeat', 'task.heartbeat', 1 union all
    select 'approved', 'approval.approved', 1 union all
    select 'rejected', 'approval.rejected', 1
  ) n on n.verb = e.verb
  where n.part = 1 or (n.name = 'task.dlq' and e.path like '%dead_lettered')
     or (n.name = 'task.reclaimed' and e.data ->> 'original_consumer' is not null)
  union all
  select e.seq, <at e.at>, 'approval.requested', e.task_id, replace(e.actor, 'agent:', ''), null, e.reason, e.data, 3
  from events e where e.path like '%>waiting_approval'
  union all
  select e.seq, <at e.at>, 'task.failed', e.task_id, replace(e.actor, 'agent:', ''), {pg: true}{lite: 1}, e.reason, e.data, 4
  from events e where e.path like '%cancelled';
