-- name: take_reply
insert into replies (workspace, key, step, fingerprint, until) values (:workspace, :key, :step, :fingerprint, :until)
on conflict do nothing returning key

-- name: keep_reply
update replies set result = :result where workspace = :workspace and key = :key and step = :step

-- name: read_reply
select fingerprint, result from replies where workspace = :workspace and key = :key and step = :step

-- name: delete_replies
delete from replies where (workspace, key, step) in (
  select workspace, key, step from replies where until <= :now order by until limit :count
) returning key
