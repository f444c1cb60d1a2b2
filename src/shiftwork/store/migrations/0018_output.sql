-- The output of a result that has words and no data is its words: what a command has printed is what its task came to.
-- PostgreSQL replaces the view, so that what readers were granted stays theirs.
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
