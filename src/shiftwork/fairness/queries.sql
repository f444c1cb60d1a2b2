-- name: add_turns
insert into turns (workspace, shares) values (:workspace, '[]') on conflict do nothing

-- name: take_turns
-- Does not wait: a claim that finds the round-robin state locked uses a random order.
select shares from turns where workspace = :workspace {postgres: for update skip locked}

-- name: save_turns
update turns set shares = :shares where workspace = :workspace

-- name: lighter_agent
-- Another active agent that has a free slot and holds fewer tasks than this one.
select a.id from agents a where a.workspace = :workspace and a.id <> :id and a.status = 'active' and a.last_heartbeat >= :since
  and (select count(*) from tasks t where t.agent_id = a.id and t.workspace = a.workspace and t.status <> 'validating')
    < (select count(*) from tasks t where t.agent_id = :id and t.workspace = :workspace and t.status <> 'validating')
  and (a.max_concurrent_tasks is null or a.max_concurrent_tasks >
    (select count(*) from tasks t where t.agent_id = a.id and t.workspace = a.workspace and t.status <> 'validating'))
limit 1

-- name: take_serials
-- Takes free keys; waits for a concurrent transaction that takes the same key.
-- rows items: workspace text, key text, task_id uuid, fence bigint
insert into serials (workspace, key, task_id, fence) select workspace, key, task_id, fence from {items} where true
on conflict (workspace, key) do update set task_id = excluded.task_id, fence = excluded.fence, idle_since = null
where serials.task_id is null returning workspace, key

-- name: lock_serials
-- Locks the keys that are still taken; waits for concurrent transactions that free one.
-- rows items: workspace text, key text
select s.workspace, s.key from {items} join serials s on s.workspace = items.workspace and s.key = items.key
where s.task_id is not null order by s.workspace, s.key {postgres: for update of s}

-- name: serial_heads
-- The first ready tasks of a lane, with their serial keys.
{postgres: with picked as materialized (}
  select t.id, t.workspace, t.type, t.lane, t.rank, t.ordered_at
    {sqlite: , (select b.body ->> 'serial_key' from bodies b where b.task_id = t.id) as serial_key}
  from tasks t
  where t.lane = :lane and t.status = 'ready' and t.hold is null
  order by t.rank, t.ordered_at, t.id limit :count
  {postgres: for update skip locked)
  select p.*, b.body ->> 'serial_key' as serial_key from picked p join bodies b on b.task_id = p.id}

-- name: hold_serials
-- For locked rows.
-- rows items: id uuid
update tasks set hold = 'serial', version = version + 1, updated_at = :now from {items} where tasks.id = items.id

-- name: insert_serial_holds
-- insert serial_holds: task_id uuid, workspace text, key text, lane int, rank float, ordered_at float
on conflict do nothing

-- name: move_serial_holds
-- rows items: id uuid, lane int, rank float, ordered_at float
update serial_holds set lane = items.lane, rank = items.rank, ordered_at = items.ordered_at from {items}
where serial_holds.task_id = items.id

-- name: delete_serial_holds
-- rows items: id uuid
delete from serial_holds where task_id in (select items.id from {items})

-- name: end_serials
-- rows items: id uuid, fence bigint
update serials set task_id = null, fence = null, idle_since = :now
where (task_id, fence) in (select items.id, items.fence from {items}) returning workspace, key

-- name: drop_serials
-- Deletes keys that no claim has and no task waits for.
-- rows items: workspace text, key text
delete from serials where task_id is null and (workspace, key) in (select items.workspace, items.key from {items})

-- name: idle_serials
-- Free keys that tasks wait for but no claim has taken for a while.
select workspace, key from serials where idle_since <= :before order by idle_since limit :count {postgres: for update skip locked}

-- name: rest_serials
-- rows items: workspace text, key text
update serials set idle_since = :now from {items}
where serials.workspace = items.workspace and serials.key = items.key and serials.task_id is null

-- name: serial_heirs
-- The first task of each lane that waits for these keys, found by skipping from lane to lane.
-- rows items: workspace text, key text
with recursive walk(workspace, key, lane) as (
  select items.workspace, items.key,
    (select min(h.lane) from serial_holds h where h.workspace = items.workspace and h.key = items.key) from {items}
  union all
  select walk.workspace, walk.key,
    (select min(h.lane) from serial_holds h where h.workspace = walk.workspace and h.key = walk.key and h.lane > walk.lane)
  from walk where walk.lane is not null
)
select walk.workspace, walk.key, (select h.task_id from serial_holds h where h.workspace = walk.workspace and h.key = walk.key and h.lane = walk.lane
        order by h.rank, h.ordered_at, h.task_id limit 1) as task_id
from walk where walk.lane is not null

-- name: lock_serial_held
-- rows items: id uuid
select t.id, t.lane from {items} join tasks t on t.id = items.id
where t.hold = 'serial' and t.status || '' = 'ready' order by t.id {postgres: for update of t}

-- name: serial_runner
select s.task_id from serial_holds h join serials s on s.workspace = h.workspace and s.key = h.key
where h.task_id = :id and s.task_id is not null

-- name: stray_serials
-- Keys whose claim has ended without freeing them; there must never be any.
select s.* from serials s left join tasks t on t.id = s.task_id and t.fence = s.fence
  and t.status in ('claimed', 'running', 'validating')
where s.task_id is not null and t.id is null limit :count

-- name: urgent_waiting
-- The most urgent waiting tasks for which no task was asked to yield: one probe of the claim index per lane.
select t.* from lanes l {postgres: cross join lateral (
  select x.* from tasks x where x.lane = l.id and x.status = 'ready' and x.hold is null and x.rank < :below
  order by x.rank, x.ordered_at, x.id limit :count) t}{sqlite: cross join tasks t on t.id in (
  select x.id from tasks x where x.lane = l.id and x.status = 'ready' and x.hold is null and x.rank < :below
  order by x.rank, x.ordered_at, x.id limit :count)}
where l.workspace = :workspace and not exists (select 1 from yields y where y.urgent_id = t.id)
order by t.rank, t.ordered_at, t.id limit :count

-- name: may_yield
-- The tasks that these agents hold and may release: not at-most-once tasks, nor those already asked to yield.
-- rows items: agent_id text
select t.* from {items} join tasks t on t.agent_id = items.agent_id
where t.workspace = :workspace and t.status in ('claimed', 'running') and not t.at_most_once
  and not exists (select 1 from yields y where y.task_id = t.id and y.fence = t.fence)
limit :count

-- name: insert_yields
-- insert yields: urgent_id uuid, workspace text, task_id uuid, fence bigint, asked_at float
on conflict do nothing

-- name: yields_of
-- rows items: id uuid, fence bigint
select y.task_id, y.fence, y.urgent_id from {items} join yields y on y.task_id = items.id and y.fence = items.fence

-- name: drop_yields
-- Removes requests whose urgent task was claimed or is no longer urgent.
delete from yields where workspace = :workspace and not exists (
  select 1 from tasks t where t.id = yields.urgent_id and t.status = 'ready' and t.hold is null)
