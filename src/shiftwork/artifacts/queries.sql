-- name: read_artifact
select * from artifacts where workspace = :workspace and hash = :hash

-- name: add_artifact
-- If the content is already stored, the row stays; it gets the new place only if its own bytes are damaged.
insert into artifacts (workspace, hash, size, media_type, place, digests, created_at, created_by, idle_since)
values (:workspace, :hash, :size, :media_type, :place, :digests, :now, :actor, :now)
on conflict (workspace, hash) do update set
  place = case when artifacts.place = cast(:damaged as text) then excluded.place else artifacts.place end,
  idle_since = case when artifacts.idle_since is null then null else excluded.idle_since end
returning *

-- name: touch_artifact
-- Restarts the time in which uploaded content must be referenced. Returns no row if it was collected meanwhile.
update artifacts set idle_since = case when idle_since is not null then cast(:now as {postgres: double precision}{sqlite: real}) end
where workspace = :workspace and hash = :hash and place = :place returning *

-- name: hold_artifacts
-- A share lock: other transactions may reference these artifacts, too, but none may collect them.
-- rows items: hash text
select a.hash, a.size, a.media_type from {items} join artifacts a on a.workspace = :workspace and a.hash = items.hash
order by a.hash {postgres: for key share of a}

-- name: find_artifacts
-- rows items: hash text
select a.hash, a.size, a.media_type from {items} join artifacts a on a.workspace = :workspace and a.hash = items.hash

-- name: find_outputs
-- The outputs of tasks: of the newest row of the lineage, or of the task itself while that is not completed; texts only if
-- short.
-- rows items: id uuid
select o.id, o.status, o.size, case when o.size <= :most then o.result end as result from (
  select items.id, n.status, a.result, octet_length(cast(a.result as text)) as size,
    row_number() over (partition by items.id order by a.ended_at desc) as place
  from {items} join tasks t on t.id = items.id join tasks r on r.id = t.root_id
  join tasks n on n.id = coalesce(r.newest_id, r.id)
  left join attempts a on a.task_id in (n.id, t.id) and a.outcome = 'completed'
  where n.workspace = :workspace
) o where o.place = 1

-- name: archived_outputs
-- rows items: id uuid
select o.id, o.status, o.size, case when o.size <= :most then o.result end as result from (
  select a.id, a.status, {postgres: cast(a.task -> 'result' as text)}{sqlite: a.task -> 'result'} as result,
    octet_length({postgres: cast(a.task -> 'result' as text)}{sqlite: a.task -> 'result'}) as size
  from {items} join archive a on a.id = items.id where a.workspace = :workspace
) o

-- name: want_artifacts
-- rows items: hash text
update artifacts set idle_since = null where workspace = :workspace and idle_since is not null
  and hash in (select items.hash from {items})

-- name: insert_artifact_uses
-- insert artifact_uses: task_id uuid, role text, hash text, name text, workspace text, at float, actor text
on conflict do nothing

-- name: add_artifact_use
insert into artifact_uses (task_id, role, hash, name, workspace, at, actor)
values (:task, :role, :hash, :name, :workspace, :now, :actor) on conflict do nothing returning task_id

-- name: artifacts_of_task
-- SQLite needs a hint for where to begin: without statistics it reads the whole workspace.
select u.role, u.name, u.at, u.actor, a.hash, a.size, a.media_type from artifact_uses u
{sqlite: cross} join artifacts a on a.workspace = u.workspace and a.hash = u.hash
where u.task_id = :id and {sqlite: +}u.workspace = :workspace order by u.at, u.role, u.name, u.hash

-- name: delete_artifact_uses
-- rows items: id uuid
delete from artifact_uses where task_id in (select items.id from {items}) returning workspace, hash

-- name: idle_artifacts
-- Starts the retention time of artifacts that lost their last use.
-- rows items: workspace text, hash text
update artifacts set idle_since = :now where (workspace, hash) in (select items.workspace, items.hash from {items})
  and idle_since is null
  and not exists (select 1 from artifact_uses u where u.workspace = artifacts.workspace and u.hash = artifacts.hash)

-- name: workspaces_with_idle
select distinct workspace from artifacts where idle_since is not null order by workspace

-- name: lock_old_artifacts
-- Skips artifacts that are being referenced now; later references wait for this lock and find the artifact gone.
select hash from artifacts where workspace = :workspace and idle_since <= :before
order by idle_since limit :count {postgres: for update skip locked}

-- name: delete_old_artifacts
-- A second statement, so that its snapshot includes every use committed before the rows were locked.
-- rows items: hash text
delete from artifacts where workspace = :workspace and hash in (select items.hash from {items})
  and not exists (select 1 from artifact_uses u where u.workspace = artifacts.workspace and u.hash = artifacts.hash)
returning hash, place

-- name: add_mark
insert into artifact_mark (id, mark) values (1, :mark) on conflict do nothing

-- name: read_mark
select mark from artifact_mark

-- name: insert_litter
-- insert artifact_litter: place text, at float
on conflict do nothing

-- name: read_litter
select place from artifact_litter order by at, place limit :count

-- name: delete_litter
-- rows items: place text
delete from artifact_litter where place in (select items.place from {items})

-- name: known_places
-- rows items: place text
select a.place from {items} join artifacts a on a.place = items.place
