-- name: claims_of_the_future
-- After the clock went back: what was claimed or heard of later than now counts from now.
update tasks set lease_check_at = :now,
  ack_by = ack_by - case when claimed_at > :now then claimed_at - :now else 0 end,
  lease_until = lease_until - case when claimed_at > :now then claimed_at - :now else 0 end,
  run_until = run_until - case when claimed_at > :now then claimed_at - :now when started_at > :now then started_at - :now else 0 end,
  heartbeat_at = case when heartbeat_at > :now then :now else heartbeat_at end,
  started_at = case when started_at > :now then :now else started_at end,
  claimed_at = case when claimed_at > :now then :now else claimed_at end
where status in ('claimed', 'running', 'validating') and (claimed_at > :now or started_at > :now or heartbeat_at > :now)
returning id

-- name: retries_of_the_future
update tasks set available_at = available_at - (updated_at - :now), updated_at = :now
where status = 'retrying' and available_at > :now and updated_at > :now returning id

-- name: ranks_of_the_future
update tasks set rerank_at = :now where status = 'ready' and rerank_at > :now and updated_at > :now

-- name: blocks_of_the_future
update tasks set block_check_at = block_check_at - (created_at - :now) where block_check_at > :now and created_at > :now

-- name: agents_of_the_future
update agents set last_heartbeat = :now where last_heartbeat > :now

-- name: runtimes_of_the_future
update runtimes set seen_at = case when seen_at > :now then :now else seen_at end,
  heartbeat_at = case when heartbeat_at > :now then :now else heartbeat_at end
where seen_at > :now or heartbeat_at > :now

-- name: waits_of_the_future
-- Not those for a time: they wait for that time of the clock.
update waits set until = until - (began_at - :now), began_at = :now where status = 'open' and kind <> 'time' and began_at > :now

-- name: approvals_of_the_future
update approvals set expires_at = expires_at - (requested_at - :now), requested_at = :now
where status = 'open' and requested_at > :now

-- name: gates_of_the_future
update gates set until = until - (closed_at - :now), closed_at = :now where closed_at > :now

-- name: breakers_of_the_future
update breakers set half_open_at = half_open_at - (opened_at - :now), probe_until = probe_until - (opened_at - :now),
  opened_at = :now where opened_at > :now

-- name: serials_of_the_future
update serials set idle_since = :now where idle_since > :now

-- name: deliveries_of_the_future
update deliveries set next_at = next_at - (created_at - :now), give_up_at = give_up_at - (created_at - :now), created_at = :now
where status = 'pending' and created_at > :now

-- name: sinks_of_the_future
update sinks set rests_until = :now where rests_until > :now

-- name: jobs_of_the_future
update duties set due_at = :now, last_run_at = :now where last_run_at > :now and name <> 'restore'
