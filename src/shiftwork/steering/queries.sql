-- name: insert_instruction
-- The caller has locked the lineage, so that numbers follow the order of commits.
insert into instructions (root_id, seq, workspace, text, sent_at, sent_by)
select cast(:root as {postgres: uuid}{sqlite: text}), coalesce(max(i.seq), 0) + 1, cast(:workspace as text), cast(:text as text),
  cast(:now as {postgres: double precision}{sqlite: real}), cast(:sent_by as text)
from instructions i where i.root_id = :root
returning *

-- name: instructions_of
select i.* from instructions i where i.root_id = :root and i.seq > :after order by i.seq limit :count

-- name: open_instructions
-- rows items: root_id uuid
select i.* from {items} join instructions i on i.root_id = items.root_id where i.open order by i.root_id, i.seq

-- name: deliver_instructions
-- rows items: root_id uuid, seq int, fence bigint
update instructions set delivered_at = :now, fence = items.fence
from {items} where instructions.root_id = items.root_id and instructions.seq = items.seq

-- name: acknowledge_instructions
update instructions set acknowledged_at = :now, delivered_at = coalesce(delivered_at, :now), fence = :fence, open = false
where root_id = :root and seq <= :seq and acknowledged_at is null
returning seq

-- name: close_instructions
-- Closes the instructions of ended tasks, so that heartbeats skip them; if a task is retried, its next claim gets them.
update instructions set open = false where open and (root_id, seq) in (
  select i.root_id, i.seq from instructions i join tasks r on r.id = i.root_id join tasks n on n.id = coalesce(r.newest_id, r.id)
  where i.open and n.status in ('completed', 'cancelled', 'dead_lettered', 'failed') limit :count)
returning seq

-- name: delete_instructions
-- rows items: id uuid
delete from instructions where root_id in (select items.id from {items})
