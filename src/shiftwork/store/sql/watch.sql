-- name: ended_by_type
-- How attempts ended of late, by type, among the newest events; both ends are given, so that the stretch is short.
select t.type as value, sum(case when e.verb = 'failed' then 1 else 0 end) as failed, count(*) as ended
from events e join tasks t on t.id = e.task_id
where e.seq >= :first and e.seq <= :last and e.workspace = :workspace and e.at >= :since and e.verb in ('completed', 'failed')
group by 1

-- name: ended_by_agent
-- The same by agent: whoever fails is named in the event, whoever completes has written it.
select coalesce(e.data ->> 'agent', replace(e.actor, 'agent:', '')) as value,
  sum(case when e.verb = 'failed' then 1 else 0 end) as failed, count(*) as ended
from events e
where e.seq >= :first and e.seq <= :last and e.workspace = :workspace and e.at >= :since and e.verb in ('completed', 'failed')
group by 1

-- name: failed_since
-- Whether so many attempts failed lately at all: without them nothing more is read.
select count(*) as total from (
  select 1 as one from events e where e.workspace = :workspace and e.verb = 'failed' and e.at >= :since limit :count
) as few

-- name: failed_alike
-- Ways of failing that were met so often, with how many agents met them.
select e.data ->> 'type' as type, e.data ->> 'signature' as signature, count(*) as failed,
  count(distinct e.data ->> 'agent') as agents, min(e.at) as first_at, max(e.at) as last_at, max(e.seq) as last_seq
from events e where e.workspace = :workspace and e.verb = 'failed' and e.at >= :since
group by 1, 2 having count(*) >= :least order by 3 desc, 7 desc limit :count

-- name: stuck_tasks
-- Executed for more than a share of what they may take.
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

-- name: dead_rows
select n_dead_tup as dead, n_live_tup as live from pg_stat_user_tables where relid = 'tasks'::regclass

-- name: dead_rows (sqlite)
select 0 as dead, 0 as live where false

-- name: old_transactions
-- What keeps vacuum from removing dead rows: transactions, prepared ones, and replication slots far behind.
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
-- Also those that nobody has set up: they have been submitted to, or have agents.
select name from workspaces union select workspace from lanes union select workspace from agents order by 1
