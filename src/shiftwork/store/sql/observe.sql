-- name: read_whole_tables
-- For what reads all rows anyway: an index would only be a detour (3 s instead of 0.4 for a million tasks).
select set_config('enable_seqscan', 'on', true)

-- name: read_whole_tables (sqlite)
select null

-- name: task_counts
-- Everything there is, in one pass: the only statement that reads all tasks of a workspace. A group is one number, made of
-- lane, state, tier and level, since SQLite sorts by each column of a group: 3.6 ms instead of 5.1 for 10,000 tasks. Where
-- levels are strict, the rank of a ready task says which level it has come to by now; 3 stands for none.
with counted as (
  select ((t.lane{pg: ::bigint} * 16 + case t.status when 'ready' then 0 when 'completed' then 1 when 'pending' then 2 when 'retrying' then 3
      when 'running' then 4 when 'claimed' then 5 when 'validating' then 6 when 'failed' then 7 when 'dead_lettered' then 8
      when 'cancelled' then 9 else 10 end) * 8
    + case when t.priority < 10 then 0 when t.priority < 30 then 1 when t.priority < 60 then 2 when t.priority < 80 then 3 else 4 end) * 4
    + case when not :strict or t.status <> 'ready' then 3 when t.rank < :urgent_high then 0 when t.rank < :urgent_medium then 1
      when t.rank < :urgent then 2 when t.rank < :high then 0 when t.rank < :medium then 1 else 2 end as number, min(t.status) as status, count(*) as total
  from tasks t where t.workspace = :workspace group by 1
) select l.type, c.status, c.number / 4 % 8 as tier, c.number % 4 as level, c.total from counted c join lanes l on l.id = c.number / 512

-- name: tombstone_count
select count(*) as total from tombstones where workspace = :workspace

-- name: archive_counts
select status, count(*) as total from archive where workspace = :workspace group by status

-- name: event_at
-- The first event from a number on.
select seq, at from events where seq >= :seq order by seq limit 1

-- name: recent_flow
-- Completions and first claims among the newest events, which stand at the end of their table. Both ends are given, so
-- that PostgreSQL knows the stretch is short.
select case when t.priority < 30 then 'high' when t.priority < 60 then 'medium' else 'low' end as level, e.verb,
  count(*) as total, sum(case when e.at > :minute then 1 else 0 end) as last_minute, sum(e.at - t.created_at) as waited
from events e join tasks t on t.id = e.task_id
where e.seq >= :first and e.seq <= :last and e.workspace = :workspace and e.at > :since
  and (e.verb = 'completed' or (e.verb = 'claimed' and e.fence = 1))
group by 1, 2

-- name: recent_failures
select e.seq, e.at, e.task_id, e.reason, e.data from events e where e.workspace = :workspace and e.verb = 'failed'
order by e.at desc, e.seq desc limit :count

-- name: failure_patterns
-- The model is that of an agent that has only one, where the event names none.
select case cast(:by as text) when 'type' then e.data ->> 'type' when 'agent' then e.data ->> 'agent'
  when 'model' then coalesce(e.data ->> 'model', (
    select case when json_array_length(a.models) = 1 then a.models ->> 0 end from agents a
    where a.workspace = e.workspace and a.id = e.data ->> 'agent'))
  when 'signature' then e.data ->> 'signature' else e.reason end as value,
  count(*) as total, min(e.at) as first_at, max(e.at) as last_at, max(e.seq) as last_seq,
  {pg: json_agg}{lite: json_group_array}(distinct e.data ->> 'agent') as agents
from events e where e.workspace = :workspace and e.verb = 'failed' and e.at >= :since
group by 1 order by 2 desc, 5 desc limit :count

-- name: events_numbered
-- rows items: seq bigint
select e.* from {items} join events e on e.seq = items.seq

-- name: moves_of_task
select * from events where task_id = :id and path is not null order by seq

-- name: list_dags
-- Newest first.
select * from dags where workspace = :workspace and (created_at, id) < (:created_at, :id)
order by created_at desc, id desc limit :count

-- name: list_dags_in
-- The same, of those in one stored status.
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
