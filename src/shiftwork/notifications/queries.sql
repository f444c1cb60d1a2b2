-- name: insert_sink
insert into sinks (id, workspace, name, kind, address, server, sender, secret, wants, allow_private, created_at, created_by,
  events_after, alerts_after)
values (:id, :workspace, :name, :kind, :address, :server, :sender, :secret, :wants, :allow_private, :now, :actor, :events, :alerts)
on conflict do nothing returning id

-- name: last_alert
select max(seq) as seq from alerts

-- name: list_sinks
select * from sinks where workspace = :workspace and removed_at is null order by name

-- name: read_sink
select * from sinks where workspace = :workspace and name = :name and removed_at is null

-- name: lock_sink
select * from sinks where workspace = :workspace and name = :name and removed_at is null {postgres: for update}

-- name: update_sink
update sinks set address = :address, server = :server, sender = :sender, secret = :secret, wants = :wants,
  allow_private = :allow_private, events_after = :events, alerts_after = :alerts, failures = 0, rests_until = null
where id = :id

-- name: pause_sink
update sinks set paused_at = :now, pause_reason = :reason where id = :id

-- name: resume_sink
update sinks set paused_at = null, pause_reason = null, failures = 0, rests_until = null where id = :id

-- name: remove_sink
update sinks set removed_at = :now, secret = null where id = :id

-- name: any_sink
select 1 as one from sinks limit 1

-- name: sinks_to_read_for
-- Sinks for which to read the log further: not paused, and without a long backlog of deliveries.
select s.* from sinks s where s.removed_at is null and s.paused_at is null and :most > (
  select count(*) from (select 1 as one from deliveries d where d.sink_id = s.id and d.status = 'pending' limit :most) as few)
order by s.id

-- name: alerts_upto
-- Of all workspaces, with the type of the task if it still exists.
select a.*, coalesce(t.type, r.type) as type
from alerts a left join tasks t on t.id = a.task_id left join archive r on r.id = a.task_id and t.id is null
where a.seq > :after and a.seq <= :last order by a.seq limit :count

-- name: lock_sinks_at
-- Sinks whose cursor no other process has moved meanwhile.
-- rows items: id text
select s.id from sinks s where s.id in (select items.id from {items}) and s.removed_at is null
  and case when :source = 'event' then s.events_after else s.alerts_after end = :after
order by s.id {postgres: for update}

-- name: move_event_cursors
-- rows items: id text
update sinks set events_after = :last where id in (select items.id from {items})

-- name: move_alert_cursors
-- rows items: id text
update sinks set alerts_after = :last where id in (select items.id from {items})

-- name: insert_deliveries
-- insert deliveries: id text, workspace text, sink_id text, source text, seq bigint, type text, message text, notification json, status text, created_at float, next_at float

-- name: sinks_with_due
select s.* from sinks s where s.removed_at is null and s.paused_at is null
  and (s.rests_until is null or s.rests_until <= :now)
  and exists (select 1 from deliveries d where d.sink_id = s.id and d.status = 'pending' and d.next_at <= :now)
order by s.id

-- name: lease_deliveries
-- If the sender dies, its attempt counts as failed at `until`.
with picked as materialized (
  select d.id from deliveries d where d.sink_id = :sink and d.status = 'pending' and d.next_at <= :now
  order by d.next_at, d.id limit :count {postgres: for update skip locked}
)
update deliveries set attempts = attempts + 1, next_at = :until, give_up_at = coalesce(give_up_at, :give_up)
where id in (select id from picked) returning *

-- name: end_delivery
-- Only the latest attempt may record its outcome.
update deliveries set status = :status, next_at = :next_at, ended_at = :ended_at, error = :error
where id = :id and status = 'pending' and attempts = :attempts returning id

-- name: lock_sink_by_id
select * from sinks where id = :id and removed_at is null {postgres: for update}

-- name: sink_answered
-- Writes nothing if the sink has no failures to clear.
update sinks set failures = 0, rests_until = null, failing = false, last_error = null
where id = :id and removed_at is null and (failures > 0 or rests_until is not null or failing) returning workspace

-- name: sink_failed
update sinks set failures = :failures, rests_until = :rests_until, failing = :failing, last_error = :error where id = :id

-- name: failing_sinks
select name, last_error from sinks where workspace = :workspace and failing and removed_at is null order by name

-- name: list_deliveries
-- Newest first, without the notification, which only `read_delivery` returns. (Without statistics, a join on PostgreSQL
-- would read all deliveries.)
select d.id, d.workspace, (select s.name from sinks s where s.id = d.sink_id) as sink, d.source, d.seq, d.type, d.message,
  null as notification, d.status, d.attempts, d.created_at, d.next_at, d.ended_at, d.error
from deliveries d
where d.workspace = :workspace and (cast(:after as text) is null or d.id < :after)
  and (cast(:sink as text) is null or d.sink_id = :sink)
  and (select s.removed_at from sinks s where s.id = d.sink_id) is null
  and (cast(:status as text) is null or d.status = :status)
order by d.id desc limit :count

-- name: list_unsent_deliveries
-- The same for pending and abandoned deliveries, which are few compared with sent ones.
select d.id, d.workspace, (select s.name from sinks s where s.id = d.sink_id) as sink, d.source, d.seq, d.type, d.message,
  null as notification, d.status, d.attempts, d.created_at, d.next_at, d.ended_at, d.error
from deliveries d
where d.workspace = :workspace and (cast(:after as text) is null or d.id < :after)
  and (cast(:sink as text) is null or d.sink_id = :sink)
  and (select s.removed_at from sinks s where s.id = d.sink_id) is null
  and d.status = :status and d.status <> 'sent'
order by d.id desc limit :count

-- name: read_delivery
select d.*, s.name as sink from deliveries d join sinks s on s.id = d.sink_id and s.removed_at is null
where d.id = :id and d.workspace = :workspace

-- name: redeliver_one
update deliveries set status = 'pending', attempts = 0, next_at = :now, give_up_at = null, ended_at = null
where id = :id and status <> 'pending' returning id

-- name: redeliver_dead
update deliveries set status = 'pending', attempts = 0, next_at = :now, give_up_at = null, ended_at = null
where id in (
  select id from deliveries where sink_id = :sink and status = 'dead' and ended_at <= :before
  order by ended_at, id limit :count {postgres: for update skip locked}
) returning id

-- name: wake_sink
update sinks set failures = 0, rests_until = null where id = :id

-- name: delete_old_deliveries
delete from deliveries where id in (
  select id from deliveries where status <> 'pending' and ended_at <= :before order by ended_at limit :count
) returning id

-- name: removed_sinks
select id from sinks where removed_at is not null order by id limit :count

-- name: delete_deliveries_of
delete from deliveries where id in (select id from deliveries where sink_id = :sink limit :count) returning id

-- name: delete_sink
delete from sinks where id = :id

-- name: public_url
select u.url from public_urls u where u.name = 'default'

-- name: set_public_url
insert into public_urls (name, url, set_at) values ('default', :url, :now)
on conflict (name) do update set url = excluded.url, set_at = excluded.set_at
