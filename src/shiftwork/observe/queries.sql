-- name: read_whole_tables
-- For statements that read all rows: an index would only slow them down (3 s instead of 0.4 for a million tasks).
select set_config('enable_seqscan', 'on', true), set_config('max_parallel_workers_per_gather', '2', true)

-- name: read_whole_tables (sqlite)
select null

-- name: scheduled_count
-- Tasks that wait for their time, and the first time.
select count(*) as total, min(until) as next_at from waits where workspace = :workspace and status = 'open' and name = ''

-- part: tier
case when t.priority < 10 then 0 when t.priority < 30 then 1 when t.priority < 60 then 2 when t.priority < 80 then 3 else 4 end

-- part: changed_tier
case when coalesce(priority, 0) < 10 then 0 when priority < 30 then 1 when priority < 60 then 2 when priority < 80 then 3 else 4 end

-- part: ended_tier
-- If the tier is unknown, for example for an event from another database, the same default is used in every count, so
-- it cancels out.
case when coalesce(t.priority, r.priority) is null then 5 when coalesce(t.priority, r.priority) < 10 then 0
  when coalesce(t.priority, r.priority) < 30 then 1 when coalesce(t.priority, r.priority) < 60 then 2
  when coalesce(t.priority, r.priority) < 80 then 3 else 4 end

-- part: task_group
-- A group is one number, made of lane, state, tier, level and hold, since SQLite sorts by each column of a group: 3.6 ms
-- instead of 5.1 for 10,000 tasks. With strict levels, the rank of a ready task contains its current
-- level; 3 stands for none.
(((t.lane{postgres: ::bigint} * 16 + case t.status when 'ready' then 0 when 'completed' then 1 when 'pending' then 2 when 'retrying' then 3
    when 'running' then 4 when 'claimed' then 5 when 'validating' then 6 when 'failed' then 7 when 'dead_lettered' then 8
    when 'cancelled' then 9 else 10 end) * 8 + {tier}) * 4
  + case when not :strict or t.status <> 'ready' then 3 when t.rank < :urgent_high then 0 when t.rank < :urgent_medium then 1
    when t.rank < :urgent then 2 when t.rank < :high then 0 when t.rank < :medium then 1 else 2 end) * 16
  + case when t.hold is null or t.status not in ('ready', 'pending') then 0 when t.hold = 'budget' then 1 when t.hold = 'serial' then 2
    when t.hold = 'time' then 3 when t.hold = 'scheduled' then 4 when t.hold = 'signal' then 5 when t.hold = 'person' then 6
    when t.hold = 'published' then 7 else 8 end as number,
  min(t.status) as status, min(t.hold) as hold, count(*) as total

-- part: task_groups
select l.id as lane, l.type, c.status, case when c.number % 16 > 0 then c.hold end as hold, c.number / 64 % 8 as tier,
  c.number / 16 % 4 as level, c.total
from counted c join lanes l on l.id = c.number / 8192

-- name: task_counts
-- Counts all tasks in one pass: the only statement that reads all tasks of a workspace.
with counted as (select {task_group} from tasks t where t.workspace = :workspace group by 1) {task_groups}

-- name: open_task_counts
-- The same for unfinished tasks, each from the smallest index that contains it.
with counted as (
  select {task_group} from (
    select t.lane, t.status, t.priority, t.rank, t.hold from lanes l join tasks t on t.lane = l.id and t.status = 'ready' and t.hold is null
    where l.workspace = :workspace
    union all
    select t.lane, t.status, t.priority, t.rank, t.hold from tasks t
    where t.status in ('claimed', 'running', 'validating') and t.workspace = :workspace
    union all
    select t.lane, t.status, t.priority, t.rank, t.hold from tasks t
    where (t.status in ('pending', 'waiting_approval', 'retrying', 'failed', 'dead_lettered') or (t.status = 'ready' and t.hold is not null))
      and t.workspace = :workspace
  ) t group by 1
) {task_groups}

-- name: read_count_mark
select read_to, whole, generation from count_marks where name = 'tasks'

-- name: lock_count_mark
select read_to, whole, generation from count_marks where name = 'tasks' {postgres: for update}

-- name: add_count_mark
insert into count_marks (name, read_to, whole) values ('tasks', :read_to, false) on conflict do nothing

-- name: move_count_mark
update count_marks set read_to = :read_to where name = 'tasks'

-- name: trust_counts
update count_marks set whole = true, generation = generation + 1 where name = 'tasks'

-- name: ended_counts
-- Tasks that ended, and ended tasks that continued, according to the log after a number; of one workspace or of all. The
-- type and priority of a removed task are in `count_changes` until its end is counted.
select g.workspace, g.type, g.status, g.tier, sum(g.total) as total from (
  select e.workspace, coalesce(t.type, r.type, e.type, '') as type, {ended_tier} as tier, d.status,
    case when e.path like '%>' || d.status then 1 else 0 end - case when e.path like d.status || '>%' then 1 else 0 end as total
  from single_events e cross join (select 'completed' as status union all select 'cancelled') d
  left join tasks t on t.id = e.task_id
  left join count_changes r on r.number = (select x.number from count_changes x where x.task_id = e.task_id and t.id is null
    order by x.number desc limit 1)
  where e.row_seq > :after and e.row_seq <= :last_row and e.seq > :after and e.seq <= :last
    and (cast(:workspace as text) is null or e.workspace = :workspace) and e.path like '%>%'
    and (e.path like '%>' || d.status or e.path like d.status || '>%')
) g group by 1, 2, 3, 4

-- name: changed_counts
-- Removed and archived tasks that are not in the sums yet.
select workspace, place, type, status, {changed_tier} as tier, sum(total) as total from count_changes
where cast(:workspace as text) is null or workspace = :workspace group by 1, 2, 3, 4, 5

-- name: settle_changes
-- Takes the changes up to the number that the log is counted to.
delete from count_changes where seq <= :read_to returning workspace, place, type, status, {changed_tier} as tier, total

-- name: read_count_sums
select workspace, place, type, status, tier, total from count_sums
where (cast(:workspace as text) is null or workspace = :workspace) and total <> 0

-- name: add_count_sums
-- rows items: workspace text, place text, type text, status text, tier int, total bigint
insert into count_sums (workspace, place, type, status, tier, total)
select items.workspace, items.place, items.type, items.status, items.tier, items.total from {items} where true
on conflict (workspace, place, type, status, tier) do update set total = count_sums.total + excluded.total

-- name: finished_counts
-- The correct sums, computed by reading all rows.
select t.workspace, 'tasks' as place, t.type, t.status, {tier} as tier, count(*) as total from tasks t where t.finished_at is not null
group by 1, 3, 4, 5
union all
select a.workspace, 'archive', '', a.status, 0, count(*) from archive a group by 1, 4
union all
select s.workspace, 'tombstones', '', '', 0, count(*) from tombstones s group by 1

-- name: pruned_count
select tasks as total from pruned where workspace = :workspace

-- name: tombstone_count
select count(*) as total from tombstones where workspace = :workspace

-- name: archive_counts
select status, count(*) as total from archive where workspace = :workspace group by status

-- name: event_at
-- The first event from a number on.
select seq, at from events where seq >= :seq order by seq limit 1

-- name: recent_flow
-- Completions and first claims among the newest events, which are at the end of their table. Both ends are given, so that
-- PostgreSQL knows the stretch is short. Only claims ask for their tasks, and only for the level.
select 'completed' as verb, 'medium' as level, sum({postgres: coalesce(e.size, 1)}{sqlite: 1}) as total,
  sum(case when e.at > :minute then {postgres: coalesce(e.size, 1)}{sqlite: 1} else 0 end) as last_minute, 0.0 as waited
from events e
where e.seq >= :first and e.seq <= :last and e.workspace = :workspace and e.at > :since and e.verb = 'completed'
having count(*) > 0
union all
select 'claimed', case when t.priority < 30 then 'high' when t.priority < 60 then 'medium' else 'low' end, count(*),
  sum(case when e.at > :minute then 1 else 0 end), sum(e.at - coalesce(t.due_at, t.created_at))
from single_events e join tasks t on t.id = e.task_id
where e.row_seq >= :first and e.row_seq < :last + 4096 and e.seq >= :first and e.seq <= :last and e.workspace = :workspace and e.at > :since
  and e.verb = 'claimed' and e.fence = 1
group by 2

-- name: recent_failures
select e.seq, e.at, e.task_id, e.reason, e.data from events e where e.workspace = :workspace and e.verb = 'failed'
order by e.at desc, e.seq desc limit :count

-- name: failure_patterns
-- If the event names no model, that of an agent with a single model is used.
select case cast(:by as text) when 'type' then e.data ->> 'type' when 'agent' then e.data ->> 'agent'
  when 'model' then coalesce(e.data ->> 'model', (
    select case when json_array_length(a.models) = 1 then a.models ->> 0 end from agents a
    where a.workspace = e.workspace and a.id = e.data ->> 'agent'))
  when 'signature' then e.data ->> 'signature' else e.reason end as value,
  count(*) as total, min(e.at) as first_at, max(e.at) as last_at, max(e.seq) as last_seq,
  {postgres: json_agg}{sqlite: json_group_array}(distinct e.data ->> 'agent') as agents
from events e where e.workspace = :workspace and e.verb = 'failed' and e.at >= :since
group by 1 order by 2 desc, 5 desc limit :count

-- name: events_numbered
-- rows items: seq bigint
select e.* from {items} join events e on e.seq = items.seq

-- name: list_dags
-- Newest first.
select * from dags where workspace = :workspace and (created_at, id) < (:created_at, :id)
order by created_at desc, id desc limit :count

-- name: list_dags_in
-- The same, for one stored status.
select * from dags where workspace = :workspace and status = :status and (created_at, id) < (:created_at, :id)
order by created_at desc, id desc limit :count

-- name: dag_totals
-- rows items: id uuid
select t.dag_id, sum(case when t.id = t.root_id then 1 else 0 end) as total, max(t.fence) as fence,
  sum(t.cost + case when t.agent_id is null then 0 else t.attempt_cost end) as spent
from {items} join tasks t on (t.dag_id = items.id and t.dag_id <> t.id) or (t.id = items.id and t.dag_id = t.id)
group by t.dag_id

-- name: change_dag
update dags set title = :title where id = :id

-- name: insert_alerts
-- insert alerts: at float, workspace text, kind text, severity text, message text, task_id uuid, data json

-- name: alerts_after
select * from alerts where workspace = :workspace and seq > :after and seq <= :last
  and (cast(:kind as text) is null or kind = :kind)
order by seq limit :count

-- name: open_alerts_after
select * from alerts where workspace = :workspace and seq > :after and seq <= :last and acknowledged_at is null
  and (cast(:kind as text) is null or kind = :kind)
order by seq limit :count

-- name: read_alert
select * from alerts where seq = :seq and workspace = :workspace

-- name: acknowledge_alert
-- The first acknowledgement is kept.
update alerts set acknowledged_at = :now, acknowledged_by = :actor
where seq = :seq and workspace = :workspace and acknowledged_at is null returning seq

-- name: resolve_alerts_of
-- Acknowledges alerts about dead letters that were decided.
-- rows items: task_id uuid
update alerts set acknowledged_at = :now, acknowledged_by = :actor from {items}
where alerts.task_id = items.task_id and alerts.acknowledged_at is null
  and alerts.kind in ('dead_lettered', 'poison_pill', 'displaced', 'escalated')

-- name: delete_alerts
delete from alerts where seq in (
  select seq from alerts where workspace = :workspace and acknowledged_at <= :before order by acknowledged_at limit :count
) returning seq

-- name: creators_of
-- rows items: id uuid
select b.task_id, b.body ->> 'created_by' as creator from {items} join bodies b on b.task_id = items.id

-- name: ended_by_type
-- How recent attempts ended, by type, among the newest events; both ends are given, so that the stretch is short.
select t.type as value, sum(case when e.verb = 'failed' then 1 else 0 end) as failed, count(*) as ended
from single_events e join tasks t on t.id = e.task_id
where e.row_seq >= :first and e.row_seq < :last + 4096 and e.seq >= :first and e.seq <= :last and e.workspace = :workspace and e.at >= :since and e.verb in ('completed', 'failed')
group by 1

-- name: ended_by_agent
-- The same by agent: a failure's event names the agent, a completion's actor is the agent.
select coalesce(e.data ->> 'agent', replace(e.actor, 'agent:', '')) as value,
  sum(case when e.verb = 'failed' then 1 else 0 end) as failed, count(*) as ended
from single_events e
where e.row_seq >= :first and e.row_seq < :last + 4096 and e.seq >= :first and e.seq <= :last and e.workspace = :workspace and e.at >= :since and e.verb in ('completed', 'failed')
group by 1

-- name: failed_since
-- Whether this many attempts failed recently: otherwise nothing more is read.
select count(*) as total from (
  select 1 as one from events e where e.workspace = :workspace and e.verb = 'failed' and e.at >= :since limit :count
) as few

-- name: failed_alike
-- Failure signatures that occurred this often, with their number of agents.
select e.data ->> 'type' as type, e.data ->> 'signature' as signature, count(*) as failed,
  count(distinct e.data ->> 'agent') as agents, min(e.at) as first_at, max(e.at) as last_at, max(e.seq) as last_seq
from events e where e.workspace = :workspace and e.verb = 'failed' and e.at >= :since
group by 1, 2 having count(*) >= :least order by 3 desc, 7 desc limit :count

-- name: stuck_tasks
-- Running for more than a share of their execution limit.
select t.id, t.agent_id, t.started_at from tasks t
where t.status in ('claimed', 'running', 'validating') and t.workspace = :workspace and t.started_at is not null
  and :now - t.started_at >= :share * (t.run_until - t.started_at)
order by t.started_at, t.id limit :count

-- name: oldest_head
-- Of the tasks that are next in their lanes, the one nothing has happened to for longest: one probe of the claim index
-- for each lane.
select t.id, t.updated_at from lanes l join tasks t on t.id = (
  select x.id from tasks x where x.lane = l.id and x.status = 'ready' and x.hold is null
  order by x.rank, x.ordered_at, x.id limit 1)
where l.workspace = :workspace and t.updated_at <= :before order by t.updated_at, t.id limit 1

-- name: next_retry
-- When the next attempt of a workspace is due: the index is in this order.
select t.available_at as at from tasks t where t.status = 'retrying' and t.workspace = :workspace order by t.available_at limit 1

-- name: next_wait
-- When the next timer of a workspace ends.
select w.until as at from waits w where w.status = 'open' and w.until is not null and w.workspace = :workspace
order by w.until limit 1

-- name: waiting_for_dead_letters
-- How many tasks wait for the newest unreviewed dead letters.
select count(*) as total from (
  select d.task_id from dead_letters d where d.workspace = :workspace and not d.reviewed
  order by d.dead_lettered_at desc limit :count
) as few join tasks t on t.id = few.task_id join edges e on e.dependency = t.root_id and not e.satisfied
where t.status = 'dead_lettered'

-- name: dead_rows
select n_dead_tup as dead, n_live_tup as live from pg_stat_user_tables where relid = 'tasks'::regclass

-- name: dead_rows (sqlite)
select 0 as dead, 0 as live where false

-- name: old_transactions
-- What keeps vacuum from removing dead rows: old transactions, prepared transactions, and lagging replication slots.
select 'process ' || pid as what, trunc(extract(epoch from clock_timestamp() - xact_start)) || ' s' as how_long
from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
  and xact_start < clock_timestamp() - make_interval(secs => :seconds)
union all
select 'prepared transaction ' || gid, trunc(extract(epoch from clock_timestamp() - prepared)) || ' s' from pg_prepared_xacts
where database = current_database() and prepared < clock_timestamp() - make_interval(secs => :seconds)
union all
select 'replication slot ' || slot_name, age(coalesce(xmin, catalog_xmin)) || ' transactions' from pg_replication_slots
where age(coalesce(xmin, catalog_xmin)) > :transactions
order by 1 limit :count

-- name: old_transactions (sqlite)
select '' as what, '' as how_long where false

-- name: used_workspaces
-- Including workspaces without a row: they have tasks or agents. A workspace that moved to another database leaves its
-- lanes behind, since other processes have cached their numbers.
select name from workspaces union select workspace from lanes union select workspace from agents
except select workspace from routes where state = 'left' order by 1

-- name: read_meter_mark
select * from meter_marks where name = 'log'

-- name: add_meter_mark
insert into meter_marks (name, folded_to, whole_to, seen_to, writers, costs_to) values ('log', 0, 0, 0, '[]', 0) on conflict do nothing

-- name: lock_meter_mark
select folded_to, costs_to from meter_marks where name = 'log' {postgres: for update}

-- name: move_meter_mark
update meter_marks set whole_to = :whole_to, seen_to = :seen_to, writers = :writers where name = 'log'

-- name: move_meters
update meter_marks set folded_to = :folded_to, costs_to = :costs_to where name = 'log'

-- name: read_meters
select name, labels, value from meters where workspace = :workspace

-- name: meter_series
select labels from meters where workspace = :workspace and name = :name

-- name: add_meters
-- rows items: workspace text, name text, labels text, value float
insert into meters (workspace, name, labels, value, moved_at)
select items.workspace, items.name, items.labels, items.value, :now from {items} where true
on conflict (workspace, name, labels) do update set value = meters.value + excluded.value, moved_at = excluded.moved_at

-- name: drop_still_meters
-- Removes a metric's series that have not changed since, to make room for others.
delete from meters where workspace = :workspace and name = :name and moved_at < :before

-- part: stretch
-- Of one workspace or of all.
e.row_seq > :after and e.row_seq < :last + 4096 and e.seq > :after and e.seq <= :last
  and (cast(:workspace as text) is null or e.workspace = :workspace)

-- part: counted
-- The same for statements that count each row with all of its events.
e.seq > :after and e.seq <= :last and (cast(:workspace as text) is null or e.workspace = :workspace)

-- name: meter_counts
-- The counts of a stretch of the log. Tasks are looked up only for events that do not name their type.
select e.workspace, e.verb, case when e.verb = 'failed' then e.reason end as reason, coalesce(e.type, t.type, a.type) as type,
  case when e.verb = 'agent_silent' then e.data ->> 'agent' end as agent,
  case when e.path like '%>dead_lettered' then 1 else 0 end as dead,
  sum(case when e.verb = 'agent_silent' then cast(e.data ->> 'tasks' as {postgres: bigint}{sqlite: integer})
    else {postgres: coalesce(e.size, 1)}{sqlite: 1} end) as total
from events e
left join tasks t on t.id = case when e.type is null then {postgres: coalesce(e.task_id, e.task_ids[1])}{sqlite: e.task_id} end
left join archive a on a.id = case when e.type is null and t.id is null then {postgres: coalesce(e.task_id, e.task_ids[1])}{sqlite: e.task_id} end
where {counted}
  and (e.verb in ('submitted', 'spawned', 'retried', 'rerun', 'completed', 'failed', 'agent_silent') or e.path like '%>dead_lettered')
group by 1, 2, 3, 4, 5, 6

-- part: one
{postgres: b}{sqlite: e}

-- name: meter_seconds
-- How long the tasks of a stretch had waited when claimed, and run when they ended, counted by bucket: the number of
-- smaller bounds in `metric_catalogue.BUCKETS`. Facts missing in an event come from its task's history or its attempt.
select s.workspace, s.verb, s.type, case when s.seconds <= 0.01 then 0 when s.seconds <= 0.05 then 1 when s.seconds <= 0.1 then 2
    when s.seconds <= 0.25 then 3 when s.seconds <= 0.5 then 4 when s.seconds <= 1 then 5 when s.seconds <= 2.5 then 6
    when s.seconds <= 5 then 7 when s.seconds <= 10 then 8 when s.seconds <= 30 then 9 when s.seconds <= 60 then 10
    when s.seconds <= 300 then 11 when s.seconds <= 900 then 12 when s.seconds <= 3600 then 13 when s.seconds <= 14400 then 14
    when s.seconds <= 86400 then 15 else 16 end as place,
  count(*) as total, sum(case when s.seconds > 0 then s.seconds else 0 end) as seconds
from (
  select e.workspace, e.verb, coalesce(e.type, (select t.type from tasks t where t.id = {one}.task_id), (
      select a.type from archive a where a.id = {one}.task_id)) as type,
    case when {one}.seconds is not null then {one}.seconds
    when e.verb = 'claimed' then e.at - coalesce((
      select max(x.at) from events x where x.task_id = {one}.task_id and x.seq < e.seq and x.path like '%ready'), (
      select c.created_at from tasks c where c.id = {one}.task_id))
    else (select p.ended_at - coalesce(p.started_at, p.claimed_at) from attempts p where p.task_id = {one}.task_id and p.fence = {one}.fence)
    end as seconds
  from events e {postgres: cross join lateral unnest(coalesce(e.task_ids, array[e.task_id]), coalesce(e.fences, array[e.fence]),
    coalesce(e.spans, array[e.seconds])) as b(task_id, fence, seconds)}
  where {counted} and e.verb in ('claimed', 'completed', 'failed')
) s where s.seconds is not null group by 1, 2, 3, 4

-- name: meter_waits
-- How long each claim's task had been ready, according to its history; for a task submitted in a batch, since then.
select case when e.seconds is not null then e.seconds else e.at - coalesce((
    select max(x.at) from events x where x.task_id = e.task_id and x.seq < e.seq and x.path like '%ready'), (
    select t.created_at from tasks t where t.id = e.task_id)) end as seconds
from single_events e where {stretch} and e.verb = 'claimed' and e.at >= :since

-- name: meter_ends
-- The attempts that ended in a stretch of the log.
select e.workspace, e.verb, coalesce(t.type, r.type) as type, a.agent_id, a.claimed_at, a.started_at, a.ended_at,
  coalesce(t.due_at, t.created_at) as created_at
from single_events e join attempts a on a.task_id = e.task_id and a.fence = e.fence
left join tasks t on t.id = e.task_id left join archive r on r.id = e.task_id and t.id is null
where {stretch} and e.verb in ('completed', 'failed', 'lease_expired', 'released', 'waited', 'cancelled') and e.at >= :since

-- name: meter_costs
-- What attempts claimed in this time have cost, of one workspace.
select c.workspace, c.type, c.agent_id, c.model, sum(c.cost) as cost from costs c
where c.workspace = :workspace and c.claimed_at >= :since and c.claimed_at < :until group by 1, 2, 3, 4

-- name: held_spells
select agent_id, claimed_at from tasks where agent_id is not null and workspace = :workspace and status <> 'validating'

-- name: open_alert_counts
select severity, count(*) as total from alerts where workspace = :workspace and acknowledged_at is null group by 1

-- name: insert_metric_snapshots
-- If the clock went back, the same time may occur again; the first snapshot is kept.
-- insert metric_snapshots: workspace text, at float, samples json
on conflict do nothing

-- name: metric_snapshots
-- Newest first.
select at, samples from metric_snapshots where workspace = :workspace and at >= :since order by at desc limit :count

-- name: drop_metric_snapshots
delete from metric_snapshots where workspace = :workspace and at < :before
