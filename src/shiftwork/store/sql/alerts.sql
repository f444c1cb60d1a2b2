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
-- The first time counts.
update alerts set acknowledged_at = :now, acknowledged_by = :actor
where seq = :seq and workspace = :workspace and acknowledged_at is null returning seq

-- name: resolve_alerts_of
-- A decision was made about these dead letters: what was raised about them needs no look any more.
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
