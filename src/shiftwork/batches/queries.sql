-- name: batch_lanes
-- Lanes of the batch lane with work, and since when its oldest task waits there.
-- rows agents: id text
select l.workspace, l.id as lane, l.target_agent_id as agent_id, l.type, min(t.ordered_at) as oldest from {agents}
join lanes l on l.target_agent_id = agents.id
join tasks t on t.lane = l.id and t.status = 'ready' group by l.workspace, l.id, l.target_agent_id, l.type
order by l.workspace, l.id

-- name: overdue_in_lane
select id from tasks where lane = :lane and status = 'ready' and ordered_at <= :before
order by ordered_at, id limit :count {postgres: for update skip locked}

-- name: overdue_batches
-- The oldest batch that has not been read to its end in time.
select * from batches where status <> 'ended' and expires_at <= :before order by expires_at, id limit 1
  {postgres: for update skip locked}

-- name: insert_batches
-- insert batches: id uuid, workspace text, provider text, model text, status text, requests int, created_at float, expires_at float

-- name: insert_batch_items
-- insert batch_items: batch_id uuid, place int, task_id uuid, fence bigint, status text

-- name: open_batches
select * from batches where provider = :provider and status <> 'ended' order by created_at, id

-- name: lock_batch
select * from batches where id = :id {postgres: for update}

-- name: batch_items_held
-- The open items of a batch, and whether each task is still under the claim that it was gathered with.
select i.place, i.task_id, i.fence, b.body,
  case when t.status = 'running' and t.fence = i.fence then 1 else 0 end as held
from batch_items i left join tasks t on t.id = i.task_id left join bodies b on b.task_id = i.task_id
where i.batch_id = :batch and i.status = 'open' order by i.place

-- name: save_batch
update batches set status = :status, requests = :requests, posting_at = :posting_at, posted_at = :posted_at,
  cancel_asked_at = :cancel_asked_at, ended_at = :ended_at, external_id = :external_id, error = :error where id = :id

-- name: end_batch_items
-- rows items: place int, status text
update batch_items set status = items.status from {items}
where batch_items.batch_id = :batch and batch_items.place = items.place and batch_items.status = 'open'

-- name: add_batch_cost
update batches set cost = cost + :cost where id = :id

-- name: known_batches
-- Our batches at a provider since a time, by their ids there.
select external_id from batches where provider = :provider and external_id is not null and created_at >= :since

-- name: list_batches
select b.*, (select count(*) from batch_items i where i.batch_id = b.id and i.status = 'open') as open from batches b
where b.workspace = :workspace and (cast(:status as text) is null or b.status = :status)
order by b.created_at desc, b.id desc limit :count

-- name: read_batch
select b.*, (select count(*) from batch_items i where i.batch_id = b.id and i.status = 'open') as open from batches b
where b.workspace = :workspace and b.id = :id

-- name: read_batch_items
select task_id, status from batch_items where batch_id = :id order by place

-- name: batch_of
-- The batch in which a task waits under this claim.
select b.provider, b.created_at, b.expires_at from batch_items i join batches b on b.id = i.batch_id
where i.task_id = :task and i.fence = :fence and i.status = 'open'

-- name: prune_batches
delete from batches where status = 'ended' and ended_at < :before
