-- name: complete_tasks
-- The usual end of a task, in one statement: the update locks the row and checks the fence. The attempt's grant and cost
-- stay on the row until the next claim resets them, so that they can be returned here. Whether any breaker or limit is
-- affected is read once for all. (`|| ''` keeps the planner from scanning an index of running tasks instead of
-- looking up the ids.)
-- rows items: id uuid, fence bigint
update tasks set status = 'completed', last_agent_id = agent_id, last_runtime_id = runtime_id, agent_id = null,
  runtime_id = null, ack_by = null, run_until = null, lease_until = null, lease_check_at = null,
  cost = cost + attempt_cost, hold = null, failure_reason = null, version = version + 1, updated_at = :now,
  finished_at = :now
from {items} where tasks.id = items.id and tasks.fence = items.fence and tasks.status || '' = 'running'
  and (tasks.validation is null or cast(:checked as {postgres: boolean}{sqlite: integer}))
  and (cast(:workspace as text) is null or tasks.workspace = :workspace)
  and (cast(:holder as text) is null or tasks.holder = :holder)
returning tasks.id, workspace, type, dag_id, root_id, tasks.fence, round, last_agent_id, last_runtime_id, claimed_at,
  started_at, granted, charged, attempt_cost, idempotency_key, own_settings, tokens_in, tokens_out,
  (exists (select 1 from breakers k where k.failures > 0 or k.state <> 'closed') or exists (select 1 from limit_claims)) as guarded,
  exists (select 1 from serials) as serialized,
  exists (select 1 from result_listeners l where l.until > :now) as awaited

-- name: completed_rows
-- The result of `complete_tasks`, for tasks that were just completed.
-- rows items: id uuid
select t.id, t.workspace, t.type, t.dag_id, t.root_id, t.fence, t.round, t.last_agent_id, t.last_runtime_id, t.claimed_at,
  t.started_at, t.granted, t.charged, t.attempt_cost, t.idempotency_key, t.own_settings, t.tokens_in, t.tokens_out,
  false as guarded, false as serialized, exists (select 1 from result_listeners l where l.until > :now) as awaited
from {items} join tasks t on t.id = items.id

-- name: ties_of
-- Whether any task depends on one of these, and whether one of these DAGs has more than one task.
-- rows items: root uuid, dag uuid
select exists (select 1 from {items} join edges e on e.dependency = items.root where not e.satisfied) as awaited,
  exists (select 1 from {items} join dags d on d.id = items.dag) as joined

-- name: satisfy_edges
-- Flips open edges only, and only flips count: a dependency that completes twice frees no dependent twice.
-- rows items: id uuid
update edges set satisfied = true where dependency in (select items.id from {items}) and not satisfied returning dependent, dependency

-- name: open_dependents
-- rows items: id uuid
select e.dependent, e.dependency, e.waits, e.any_end from {items} join edges e on e.dependency = items.id where not e.satisfied

-- name: lock_roots
-- rows items: id uuid
select t.id from {items} join tasks t on t.id = items.id order by t.id {postgres: for update of t}

-- name: lock_lineages
-- The newest row of each lineage, locked in id order.
-- rows items: id uuid
select t.* from {items} join tasks r on r.id = items.id join tasks t on t.id = coalesce(r.newest_id, r.id)
order by t.id {postgres: for update of t}

-- name: edges_of
-- rows items: id uuid
select e.dependent, e.dependency, e.satisfied, e.waits, e.any_end, e.failure from {items} join edges e on e.dependent = items.id order by e.dependent, e.dependency

-- name: lock_what_ends_touch
-- Locks the DAGs of tasks that change; each row says whether any claim has a serial key, any breaker has seen a failure,
-- and any claim counts against a limit. Usually there is none of this, and one row says so.
-- rows items: id uuid
with locked as (select d.* from {items} join dags d on d.id = items.id order by d.id {postgres: for update of d})
select found.*, locked.* from (
  select exists (select 1 from serials) as serialized, exists (select 1 from limit_claims) as limited,
    exists (select 1 from breakers k where k.failures > 0 or k.state <> 'closed') as tripped
) as found left join locked on true

-- name: lock_ends
-- As `lock_tasks`, with what `lock_what_ends_touch` reads besides DAGs. All that a live claim has taken was committed before
-- its token was returned.
-- rows items: id uuid
select t.*, exists (select 1 from serials) as serialized, exists (select 1 from limit_claims) as limited,
  exists (select 1 from breakers k where k.failures > 0 or k.state <> 'closed') as tripped
from {items} join tasks t on t.id = items.id order by t.id {postgres: for update of t}

-- name: lock_dags
-- rows items: id uuid
select d.* from {items} join dags d on d.id = items.id order by d.id {postgres: for update of d}

-- name: save_dags
-- own rows: `lock_what_ends_touch` has locked them.
-- save dags by id uuid: open int, settled int, status text, finished_at float, cancelled_by text

-- name: dag_motion
-- For each DAG: whether any task can still move by itself, whether any was completed, and whether any failed without
-- every dependent continuing; the first one found is enough. A row with a successor does not count, nor one that
-- is scheduled and also waits for others. (The last line is the task that the DAG began with.)
-- rows items: id uuid
select items.id as dag_id,
  exists (select 1 from tasks t join tasks r on r.id = t.root_id and t.id = coalesce(r.newest_id, r.id)
          where t.dag_id = items.id and t.dag_id <> t.id
            and t.status in ('waiting_approval', 'ready', 'claimed', 'running', 'validating', 'retrying'))
  or exists (select 1 from tasks t join tasks r on r.id = t.root_id and t.id = coalesce(r.newest_id, r.id)
             where t.dag_id = items.id and t.dag_id <> t.id and t.status = 'pending'
               and (t.hold in ('time', 'signal', 'person') or (t.hold = 'scheduled' and t.waiting = 1)))
  or coalesce(o.status in ('waiting_approval', 'ready', 'claimed', 'running', 'validating', 'retrying')
              or (o.status = 'pending' and (o.hold in ('time', 'signal', 'person') or (o.hold = 'scheduled' and o.waiting = 1))), false) as moving,
  exists (select 1 from tasks t join tasks r on r.id = t.root_id and t.id = coalesce(r.newest_id, r.id)
          where t.dag_id = items.id and t.dag_id <> t.id and t.status = 'completed')
  or coalesce(o.status = 'completed', false) as completed,
  exists (select 1 from tasks t join tasks r on r.id = t.root_id and t.id = coalesce(r.newest_id, r.id)
          where t.dag_id = items.id and t.dag_id <> t.id and t.status in ('dead_lettered', 'failed')
            and not exists (select 1 from edges e where e.dependency = t.root_id and e.failure is not null))
  or coalesce(o.status in ('dead_lettered', 'failed')
              and not exists (select 1 from edges e where e.dependency = o.root_id and e.failure is not null), false) as unaccepted
from {items} left join tasks o on o.id = items.id and o.dag_id = o.id and o.newest_id is null

-- name: settle_agents
-- own rows: `lock_agents` has locked them.
-- Releases the grants and books the costs.
-- rows items: workspace text, id text, granted bigint, spent bigint, told int
update agents set granted = agents.granted - items.granted, spent = agents.spent + items.spent, told = items.told
from {items} where agents.workspace = items.workspace and agents.id = items.id

-- name: lock_agents
-- rows items: workspace text, id text
select a.* from {items} join agents a on a.workspace = items.workspace and a.id = items.id
order by a.workspace, a.id {postgres: for update of a}

-- name: insert_dead_letters
-- insert dead_letters: task_id uuid, round int, workspace text, type text, reason text, error text, signature text, attempts int, poison_pill boolean, dead_lettered_at float

-- name: satisfy_pairs
-- rows items: dependent uuid, dependency uuid
update edges set satisfied = true where (dependent, dependency) in (select items.dependent, items.dependency from {items}) and not satisfied
returning dependent, dependency

-- name: end_edges
-- The dependencies ended without success, and these dependents continue. Like every flip, each counts once.
-- rows items: dependent uuid, dependency uuid, failure json
update edges set satisfied = true, failure = items.failure
from {items} where edges.dependent = items.dependent and edges.dependency = items.dependency and not edges.satisfied
returning edges.dependent, edges.dependency

-- name: ends_of
-- The state of each lineage's newest row, with the error of its dead letter or of its last attempt.
-- rows items: id uuid
select r.id as root_id, n.id, n.status, n.failure_reason, n.cancel_reason, coalesce(
    (select d.error from dead_letters d where d.task_id = n.id and d.round = n.round),
    (select coalesce(a.error, a.note) from attempts a where a.task_id = n.id order by a.fence desc limit 1)) as error
from {items} join tasks r on r.id = items.id join tasks n on n.id = coalesce(r.newest_id, r.id)

-- name: forget_failed_waits
-- Reopens the edges that a task has continued without.
-- rows items: id uuid
update edges set any_end = false, failure = null
where dependent in (select items.id from {items}) and waits and failure is not null

-- name: downstream_of
-- The edges below a task inside one DAG; a parent that waits for subtasks is not below them.
with recursive down(dependent, dependency) as (
  select e.dependent, e.dependency from edges e join tasks t on t.id = e.dependent and t.dag_id = :dag
  where e.dependency = :root and not e.waits
  union
  select e.dependent, e.dependency from down join edges e on e.dependency = down.dependent and not e.waits
  join tasks t on t.id = e.dependent and t.dag_id = :dag
) select dependent, dependency from down order by dependent, dependency limit :count

-- name: reopen_edges
-- Reopens the edges to dependencies that are rerun.
-- rows items: dependent uuid, dependency uuid
update edges set satisfied = false, failure = null
where (dependent, dependency) in (select items.dependent, items.dependency from {items})
