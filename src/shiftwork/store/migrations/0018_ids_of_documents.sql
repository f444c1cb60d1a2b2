-- The SQL views name tasks as the documents do elsewhere: `event_log` by the name that its submitter gave a task, or by
-- the id in the streams (`task_` and 26 characters); `task_uuid` is the id that the tables have, and indexed. It has the
-- end of every task: a cancelled or rejected one has failed, and an entry that cannot be understood is a dead letter.
-- `agent_task_queue` has the text that an agent or its command printed as its output.
drop view event_log;
create view event_log as
  select l.id, l.at, l.event_type,
    coalesce((select t.external_id from tasks t where t.id = l.task_uuid),
      (select a.external_id from archive a where a.id = l.task_uuid),
      (select 'task_' ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v0 >> 5) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v0 >> 0) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v1 >> 15) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v1 >> 10) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v1 >> 5) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v1 >> 0) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v2 >> 15) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v2 >> 10) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v2 >> 5) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v2 >> 0) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v3 >> 15) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v3 >> 10) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v3 >> 5) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v3 >> 0) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v4 >> 15) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v4 >> 10) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v4 >> 5) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v4 >> 0) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v5 >> 15) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v5 >> 10) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v5 >> 5) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v5 >> 0) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v6 >> 15) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v6 >> 10) & 31), 1) ||
      substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v6 >> 5) & 31), 1) || substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((v6 >> 0) & 31), 1)
      from (select
        {pg: cast(cast('x000000' || substr(h, 1, 2) as bit(32)) as int)}{lite: (instr('0123456789abcdef', substr(h, 1, 1)) - 1) * 16 + (instr('0123456789abcdef', substr(h, 2, 1)) - 1)} as v0,
        {pg: cast(cast('x000' || substr(h, 3, 5) as bit(32)) as int)}{lite: (instr('0123456789abcdef', substr(h, 3, 1)) - 1) * 65536 + (instr('0123456789abcdef', substr(h, 4, 1)) - 1) * 4096 + (instr('0123456789abcdef', substr(h, 5, 1)) - 1) * 256 + (instr('0123456789abcdef', substr(h, 6, 1)) - 1) * 16 + (instr('0123456789abcdef', substr(h, 7, 1)) - 1)} as v1,
        {pg: cast(cast('x000' || substr(h, 8, 5) as bit(32)) as int)}{lite: (instr('0123456789abcdef', substr(h, 8, 1)) - 1) * 65536 + (instr('0123456789abcdef', substr(h, 9, 1)) - 1) * 4096 + (instr('0123456789abcdef', substr(h, 10, 1)) - 1) * 256 + (instr('0123456789abcdef', substr(h, 11, 1)) - 1) * 16 + (instr('0123456789abcdef', substr(h, 12, 1)) - 1)} as v2,
        {pg: cast(cast('x000' || substr(h, 13, 5) as bit(32)) as int)}{lite: (instr('0123456789abcdef', substr(h, 13, 1)) - 1) * 65536 + (instr('0123456789abcdef', substr(h, 14, 1)) - 1) * 4096 + (instr('0123456789abcdef', substr(h, 15, 1)) - 1) * 256 + (instr('0123456789abcdef', substr(h, 16, 1)) - 1) * 16 + (instr('0123456789abcdef', substr(h, 17, 1)) - 1)} as v3,
        {pg: cast(cast('x000' || substr(h, 18, 5) as bit(32)) as int)}{lite: (instr('0123456789abcdef', substr(h, 18, 1)) - 1) * 65536 + (instr('0123456789abcdef', substr(h, 19, 1)) - 1) * 4096 + (instr('0123456789abcdef', substr(h, 20, 1)) - 1) * 256 + (instr('0123456789abcdef', substr(h, 21, 1)) - 1) * 16 + (instr('0123456789abcdef', substr(h, 22, 1)) - 1)} as v4,
        {pg: cast(cast('x000' || substr(h, 23, 5) as bit(32)) as int)}{lite: (instr('0123456789abcdef', substr(h, 23, 1)) - 1) * 65536 + (instr('0123456789abcdef', substr(h, 24, 1)) - 1) * 4096 + (instr('0123456789abcdef', substr(h, 25, 1)) - 1) * 256 + (instr('0123456789abcdef', substr(h, 26, 1)) - 1) * 16 + (instr('0123456789abcdef', substr(h, 27, 1)) - 1)} as v5,
        {pg: cast(cast('x000' || substr(h, 28, 5) as bit(32)) as int)}{lite: (instr('0123456789abcdef', substr(h, 28, 1)) - 1) * 65536 + (instr('0123456789abcdef', substr(h, 29, 1)) - 1) * 4096 + (instr('0123456789abcdef', substr(h, 30, 1)) - 1) * 256 + (instr('0123456789abcdef', substr(h, 31, 1)) - 1) * 16 + (instr('0123456789abcdef', substr(h, 32, 1)) - 1)} as v6
        from (select replace({pg: cast(l.task_uuid as text)}{lite: l.task_uuid}, '-', '') as h) hex) groups
        where l.task_uuid is not null)) as task_id,
    l.worker, l.final, l.reason, l.data, l.part, l.task_uuid
  from (
    select e.seq as id, <at e.at> as at,
      n.name as event_type, e.task_id as task_uuid, replace(e.actor, 'agent:', '') as worker,
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
    from events e where e.path like '%cancelled'
  ) l;

-- PostgreSQL replaces this one, so that what readers were granted stays theirs.
{lite: drop view agent_task_queue;}
create {pg: or replace }view agent_task_queue as
  select t.id, t.workspace as workspace_id, t.target_agent_id as agent_id, t.issue_id,
    case when t.status in ('pending', 'waiting_approval', 'ready', 'retrying') then 'queued'
         when t.status = 'claimed' then 'dispatched' when t.status in ('running', 'validating') then 'running'
         when t.status = 'completed' then 'completed' when t.status = 'cancelled' then 'cancelled' else 'failed' end as status,
    t.trigger_type, b.body ->> 'trigger_comment_id' as trigger_comment_id, b.body ->> 'trigger_summary' as trigger_summary,
    t.session_id, t.work_dir,
    (select coalesce(a.result ->> 'data', a.result ->> 'text') from attempts a where a.task_id = t.id and a.outcome = 'completed' order by a.round desc limit 1) as output,
    t.attempts + case when t.status in ('failed', 'dead_lettered') or (t.status = 'cancelled' and exists (
      select 1 from attempts a where a.task_id = t.id and a.outcome = 'failed' and a.ended_at >= t.claimed_at
    )) then 0 else 1 end as attempt, t.max_attempts,
    case when t.failure_reason in ('timeout', 'claim_expired', 'heartbeat_timeout') then 'timeout'
         when t.failure_reason in ('cancelled', 'approval_rejected') then 'cancelled'
         when t.failure_reason = 'runtime_offline' then 'runtime_offline'
         when t.failure_reason is not null then 'agent_error' end as failure_reason,
    t.retry_of as parent_task_id,
    case when t.status not in ('pending', 'waiting_approval', 'ready', 'retrying') then <at t.claimed_at> end as claimed_at,
    case when t.status not in ('pending', 'waiting_approval', 'ready', 'retrying') then <at t.started_at> end as started_at,
    case when t.status = 'completed' then <at t.finished_at> end as completed_at,
    <at t.created_at> as created_at, <at t.updated_at> as updated_at
  from tasks t join bodies b on b.task_id = t.id;
