-- The whole queue. Times are seconds since 1970 (UTC) as floating point; money is integer millionths of a dollar.

create table workspaces (
  name text primary key,
  profile text not null,
  created_at <float> not null
){lite: strict};

-- One row per changed setting; scope is '' for the workspace itself, else a task type.
create table settings (
  workspace text not null,
  scope text not null,
  key text not null,
  value <json> not null,
  changed_at <float> not null,
  changed_by text not null,
  primary key (workspace, scope, key)
){lite: strict};

-- Who may take a task: everything eligibility depends on. Immutable, interned, cached for ever.
create table lanes (
  id <int> primary key,
  signature text not null unique,
  workspace text not null,
  type text not null,
  capabilities <json> not null,
  models <json> not null,
  fallback <json> not null,
  rate <float> not null,
  target_agent_id text,
  mixed <boolean> not null,
  share <int>,
  serial text check (serial in ('agent_type', 'key'))
){lite: strict};

create index idx_lanes_target on lanes (workspace, target_agent_id) where target_agent_id is not null;

-- What hands out no work of a scope for now: all (`*`) or a type for kinds pause and breaker, a key for cooldown and limit.
-- A slowdown closes nothing. An empty agent_id stands for everybody; `told` is set once who waits was told that it is over.
create table gates (
  workspace text not null,
  scope text not null,
  kind text not null check (kind in ('pause', 'breaker', 'cooldown', 'limit', 'slowdown')),
  agent_id text not null default '',
  reason text,
  closed_at <float> not null,
  closed_by text not null,
  until <float>,
  told <boolean> not null default false,
  primary key (workspace, scope, kind, agent_id)
){lite: strict};

-- The hot row: narrow, rewritten by every change of state. What is wide and fixed stands in `bodies`.
create table tasks (
  id <uuid> primary key,
  workspace text not null,
  type text not null,
  status text not null check (status in ('pending', 'waiting_approval', 'ready', 'claimed', 'running', 'validating',
                                         'completed', 'failed', 'retrying', 'dead_lettered', 'cancelled')),
  hold text,
  lane <int> not null,
  rank <float> not null,
  ordered_at <float> not null,
  rerank_at <float>,
  priority <float> not null,
  boost <float> not null,
  deadline <float>,
  path_weight <int> not null,
  front <boolean> not null default false,

  dag_id <uuid> not null,
  root_id <uuid> not null,
  newest_id <uuid>,
  parent_id <uuid>,
  retry_of <uuid>,
  rerun_of <uuid>,
  waiting <int> not null default 0 check (waiting >= 0),
  blocked_reason text,
  block_check_at <float>,

  attempts <int> not null default 0 check (attempts >= 0),
  max_attempts <int> not null,
  reclaims <int> not null default 0,
  rate_limits <int> not null default 0,
  round <int> not null default 1,
  version <bigint> not null default 1,
  fence <bigint> not null default 0,

  agent_id text,
  runtime_id text,
  holder text,
  claimed_at <float>,
  started_at <float>,
  heartbeat_at <float>,
  ack_by <float>,
  run_until <float>,
  lease_until <float>,
  lease_check_at <float>,
  available_at <float>,
  last_agent_id text,
  last_runtime_id text,
  lost_agent_id text,

  timeout_sec <float>,
  validation text,
  at_most_once <boolean> not null default false,
  own_settings <boolean> not null default false,
  tallied <boolean> not null default false,
  estimated_cost <bigint>,
  budget_id <uuid>,
  charged <boolean> not null default false,
  granted <bigint> not null default 0,
  cost <bigint> not null default 0,
  attempt_cost <bigint> not null default 0,
  tokens_in <bigint> not null default 0,
  tokens_out <bigint> not null default 0,

  external_id text,
  idempotency_key text,
  target_agent_id text,
  issue_id text,
  trigger_type text,
  session_id text,
  work_dir text,
  force_fresh_session <boolean> not null default false,
  failure_reason text,
  cancel_reason text,
  created_at <float> not null,
  updated_at <float> not null,
  finished_at <float>,

  -- Invariant 1: a held task has exactly one holder, and only a held task has one.
  check ((status in ('claimed', 'running', 'validating')) = (agent_id is not null)),
  check (status <> 'ready' or waiting = 0),
  check ((status in ('completed', 'cancelled')) = (finished_at is not null))
){pg: with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
            autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)}{lite: strict};

create index idx_tasks_claimable on tasks (lane, rank, ordered_at, id) where status = 'ready' and hold is null;
-- A lone task is its own DAG and found by its id; only real members are indexed.
create index idx_tasks_dag on tasks (dag_id, status) where dag_id <> id;
create index idx_tasks_heartbeat on tasks (lease_check_at) where status in ('claimed', 'running', 'validating');
create index idx_tasks_holder on tasks (agent_id) where agent_id is not null;
create index idx_tasks_runtime on tasks (runtime_id) where runtime_id is not null;
create index idx_tasks_retry on tasks (available_at) where status = 'retrying';
create index idx_tasks_rerank on tasks (rerank_at) where rerank_at is not null and status = 'ready';
create index idx_tasks_blocked on tasks (block_check_at) where block_check_at is not null;
-- What waits in workspaces that limit it, by level; the rows of all others are not in it and cost nothing.
create index idx_tasks_tally on tasks (workspace, (case when priority < 30 then 'high' when priority < 60 then 'medium' else 'low' end),
  created_at, id) where tallied and status in ('pending', 'waiting_approval', 'ready', 'retrying');
create index idx_tasks_lineage on tasks (root_id) where retry_of is not null or rerun_of is not null;
create index idx_tasks_parent on tasks (parent_id) where parent_id is not null;
create index idx_task_queue_status on tasks (status) where target_agent_id is not null and status in ('pending', 'ready',
  'claimed', 'running');
create index idx_task_queue_agent on tasks (target_agent_id, status) where target_agent_id is not null;
create index idx_task_queue_issue on tasks (issue_id) where issue_id is not null;

-- What a submitter wrote: fixed, wide, read by claims.
create table bodies (
  task_id <uuid> primary key,
  body <json> not null
){lite: strict};

create table tags (
  workspace text not null,
  tag text not null,
  task_id <uuid> not null,
  primary key (workspace, tag, task_id)
){lite: strict};
create index idx_tags_task on tags (task_id);

-- Names callers gave to tasks, and names that are awaited: `known` is false until the task comes.
create table names (
  workspace text not null,
  name text not null,
  task_id <uuid> not null unique,
  known <boolean> not null,
  primary key (workspace, name)
){lite: strict};

-- Idempotency keys in force. Leaving the scope deletes the row.
create table keys (
  workspace text not null,
  key text not null,
  task_id <uuid> not null,
  until <float>,
  primary key (workspace, key)
){lite: strict};

-- A dependent waits for its dependency; both are roots of their lineages. Only flipping `satisfied` counts.
create table edges (
  dependent <uuid> not null,
  dependency <uuid> not null,
  satisfied <boolean> not null,
  waits <boolean> not null default false,
  primary key (dependent, dependency),
  check (dependent <> dependency)
){lite: strict};
create index idx_edges_open on edges (dependency) where not satisfied;
create index idx_edges_dependency on edges (dependency);

-- DAGs of more than one task. A lone task is its own DAG, without a row here.
create table dags (
  id <uuid> primary key,
  workspace text not null,
  title text,
  created_by text,
  status text not null check (status in ('open', 'completed', 'failed', 'cancelled')),
  open <int> not null check (open >= 0),
  settled <int> not null default 0 check (settled >= 0),
  cancelled_by text,
  created_at <float> not null,
  finished_at <float>
){lite: strict};
create index idx_dags_workspace on dags (workspace, created_at, id);
create index idx_dags_status on dags (workspace, status, created_at, id);

-- One execution by one agent; written once, at its end.
create table attempts (
  task_id <uuid> not null,
  fence <bigint> not null,
  round <int> not null,
  agent_id text not null,
  runtime_id text,
  claimed_at <float> not null,
  started_at <float>,
  ended_at <float> not null,
  outcome text not null check (outcome in ('completed', 'failed', 'cancelled', 'released', 'reclaimed', 'waiting')),
  counted <boolean> not null,
  reason text,
  error text,
  note text,
  cost <bigint> not null,
  granted <bigint> not null default 0,
  result <json>,
  verdict <json>,
  primary key (task_id, fence)
){lite: strict};
-- Invariant 2: one accepted outcome per task and round.
create unique index idx_attempts_accepted on attempts (task_id, round) where outcome = 'completed';

create table progress (
  task_id <uuid> primary key,
  at <float> not null,
  value <json> not null
){lite: strict};

create table dead_letters (
  task_id <uuid> not null,
  round <int> not null,
  workspace text not null,
  type text not null,
  reason text,
  error text,
  signature text not null,
  attempts <int> not null,
  poison_pill <boolean> not null,
  dead_lettered_at <float> not null,
  reviewed <boolean> not null default false,
  resolution text,
  deleted <boolean> not null default false,
  primary key (task_id, round)
){lite: strict};
create index idx_dead_letters_open on dead_letters (workspace, dead_lettered_at) where not reviewed;
create index idx_dead_letters_signature on dead_letters (workspace, signature) where not reviewed;

create table reviews (
  seq {pg: bigint generated always as identity primary key}{lite: integer primary key autoincrement},
  task_id <uuid> not null,
  round <int> not null,
  at <float> not null,
  actor text not null,
  decision text not null,
  note text,
  change <json>
){lite: strict};
create index idx_reviews_task on reviews (task_id);

create table agents (
  workspace text not null,
  id text not null,
  type text,
  types <json>,
  capabilities <json> not null,
  models <json> not null,
  provider text,
  account text,
  max_concurrent_tasks <int>,
  status text not null check (status in ('active', 'draining', 'offline', 'failed')),
  budget <bigint>,
  spent <bigint> not null default 0,
  granted <bigint> not null default 0 check (granted >= 0),
  told <int> not null default 0,
  poll_interval_sec <float> not null,
  claim_ttl_sec <float>,
  isolation_group text,
  announced <boolean> not null,
  last_type text,
  registered_at <float> not null,
  last_heartbeat <float> not null,
  primary key (workspace, id)
){pg: with (fillfactor = 50)}{lite: strict};

-- One running process that hosts agents; its beat is the lease of all it holds.
create table runtimes (
  workspace text not null,
  id text not null,
  status text not null check (status in ('active', 'offline')),
  heartbeat_at <float>,
  seen_at <float> not null,
  registered_at <float> not null,
  presence <json>,
  primary key (workspace, id)
){pg: with (fillfactor = 50)}{lite: strict};

-- One row per verb and task, with the path of states passed, written in the transaction of the change.
create table events (
  seq {pg: bigint generated always as identity primary key}{lite: integer primary key autoincrement},
  at <float> not null,
  workspace text not null,
  task_id <uuid>,
  dag_id <uuid>,
  verb text not null,
  path text,
  actor text not null,
  request_id text,
  fence <bigint>,
  reason text,
  data <json>
){lite: strict};
create index idx_events_task on events (task_id) {pg: with (fillfactor = 90)};
create index idx_events_failed on events (workspace, at, seq) where verb = 'failed';

create table archive (
  id <uuid> primary key,
  workspace text not null,
  external_id text,
  status text not null,
  type text not null,
  archived_at <float> not null,
  task <json> not null
){lite: strict};
create index idx_archive_name on archive (workspace, external_id) where external_id is not null;

-- What a purge or retention removed, so that created = the sum over states + tombstones.
create table tombstones (
  task_id <uuid> primary key,
  workspace text not null,
  at <float> not null,
  actor text not null,
  reason text not null
){lite: strict};

create table duties (
  name text primary key,
  due_at <float> not null,
  last_run_at <float>,
  took_sec <float>,
  counts <json>,
  runs <bigint> not null default 0
){lite: strict};

-- Who may come in over HTTP. The secret itself is not kept, only its SHA-256.
create table tokens (
  id text primary key,
  workspace text not null,
  name text not null,
  scopes <json> not null,
  hash text not null unique,
  created_at <float> not null,
  created_by text not null,
  expires_at <float>,
  revoked_at <float>
){lite: strict};
create index idx_tokens_workspace on tokens (workspace);

-- What a request with an Idempotency-Key came to, written in the transactions of its verb.
create table replies (
  workspace text not null,
  key text not null,
  step <int> not null,
  fingerprint text not null,
  until <float> not null,
  result <json>,
  primary key (workspace, key, step)
){lite: strict};
create index idx_replies_until on replies (until);

-- What somebody should look at; written after the events of the same transaction, whose lock covers its numbers.
create table alerts (
  seq {pg: bigint generated always as identity primary key}{lite: integer primary key autoincrement},
  at <float> not null,
  workspace text not null,
  kind text not null,
  severity text not null check (severity in ('info', 'warning', 'critical')),
  message text not null,
  task_id <uuid>,
  data <json>,
  acknowledged_at <float>,
  acknowledged_by text
){lite: strict};
create index idx_alerts_workspace on alerts (workspace, seq);
create index idx_alerts_open on alerts (workspace, seq) where acknowledged_at is null;
create index idx_alerts_acknowledged on alerts (workspace, acknowledged_at) where acknowledged_at is not null;

-- SQL as a door: the documents' own names over the same rows.
create view agent_task_queue as
  select t.id, t.workspace as workspace_id, t.target_agent_id as agent_id, t.issue_id,
    case when t.status in ('pending', 'waiting_approval', 'ready', 'retrying') then 'queued'
         when t.status = 'claimed' then 'dispatched' when t.status in ('running', 'validating') then 'running'
         when t.status = 'completed' then 'completed' when t.status = 'cancelled' then 'cancelled' else 'failed' end as status,
    t.trigger_type, b.body ->> 'trigger_comment_id' as trigger_comment_id, b.body ->> 'trigger_summary' as trigger_summary,
    t.session_id, t.work_dir,
    (select a.result ->> 'data' from attempts a where a.task_id = t.id and a.outcome = 'completed' order by a.round desc limit 1) as output,
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

{pg: create schema factory;}
create view {pg: factory.tasks}{lite: factory_tasks} as
  select t.id, t.workspace, t.type, upper(t.status) as status, t.priority, t.dag_id, t.parent_id, t.attempts, t.max_attempts,
    t.agent_id as claim_agent_id, <at t.claimed_at> as claim_claimed_at, <at t.heartbeat_at> as heartbeat_at,
    <at t.available_at> as retry_at, t.failure_reason,
    t.cost / 1000000.0 as cost_usd, b.body ->> 'title' as title, b.body {pg: ->}{lite: ->>} 'spec' as spec,
    <at t.created_at> as created_at, <at t.started_at> as started_at,
    case when t.status = 'completed' then <at t.finished_at> end as completed_at
  from tasks t join bodies b on b.task_id = t.id;

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
    select 'heartbeat', 'task.heartbeat', 1 union all
    select 'approved', 'approval.approved', 1 union all
    select 'rejected', 'approval.rejected', 1
  ) n on n.verb = e.verb
  where n.part = 1 or (n.name = 'task.dlq' and e.path like '%dead_lettered')
     or (n.name = 'task.reclaimed' and e.data ->> 'original_consumer' is not null)
  union all
  select e.seq, <at e.at>, 'approval.requested', e.task_id, replace(e.actor, 'agent:', ''), null, e.reason, e.data, 3
  from events e where e.path like '%>waiting_approval';
