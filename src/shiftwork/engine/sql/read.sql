-- name: read_whole_tasks
-- With the bodies, and with flags for other tables that have rows about each task, so that the rest is not queried.
-- rows items: id uuid
select t.*, b.body,
  exists (select 1 from edges e where e.dependent = t.root_id) as has_edges,
  exists (select 1 from attempts a where a.task_id = t.id) as has_attempts,
  exists (select 1 from dead_letters d where d.task_id = t.id) as has_letters,
  exists (select 1 from tags g where g.task_id = t.id) as has_tags,
  exists (select 1 from progress p where p.task_id = t.id) as has_progress,
  exists (select 1 from aliases s where s.task_id = t.root_id) as has_aliases,
  (select r.heartbeat_at from runtimes r where r.workspace = t.workspace and r.id = t.runtime_id) as runtime_heartbeat_at
from {items} join tasks t on t.id = items.id join bodies b on b.task_id = t.id order by t.id

-- name: tags_of
-- rows items: id uuid
select t.task_id, t.tag from {items} join tags t on t.task_id = items.id order by t.task_id, t.tag

-- name: progress_of
-- rows items: id uuid
select p.* from {items} join progress p on p.task_id = items.id

-- name: letters_of
-- rows items: id uuid
select d.* from {items} join dead_letters d on d.task_id = items.id order by d.task_id, d.round

-- part: asked_states
(select {postgres: jsonb_array_elements_text(cast(:statuses as jsonb))}{sqlite: value from json_each(:statuses)})

-- part: filtered
(cast(:type as text) is null or t.type = :type)
and (cast(:agent as text) is null or t.agent_id = :agent or t.target_agent_id = :agent)
and (cast(:issue as text) is null or t.issue_id = :issue)
and (cast(:dag as {postgres: uuid}{sqlite: text}) is null or t.dag_id = :dag)
and (cast(:parent as {postgres: uuid}{sqlite: text}) is null or t.parent_id = :parent)
and (cast(:since as {postgres: double precision}{sqlite: real}) is null or t.created_at >= :since)
and (cast(:until as {postgres: double precision}{sqlite: real}) is null or t.created_at < :until)
and (cast(:tag as text) is null or exists (select 1 from tags g where g.workspace = t.workspace and g.tag = :tag and g.task_id = t.id))
and (cast(:reason as text) is null or t.failure_reason = :reason)
and (cast(:least as {postgres: double precision}{sqlite: real}) is null or t.priority >= :least)
and (cast(:most as {postgres: double precision}{sqlite: real}) is null or t.priority < :most)
and (cast(:as_of as {postgres: double precision}{sqlite: real}) is null or t.created_at <= :as_of)
and (:any_status or t.status in {asked_states})

-- name: open_ids
-- Unfinished tasks in these states, unordered, each from the smallest index that contains it.
select t.id from lanes l join tasks t on t.lane = l.id and t.status = 'ready' and t.hold is null
where l.workspace = :workspace and 'ready' in {asked_states}
union all
select t.id from tasks t
where t.status in ('claimed', 'running', 'validating') and t.workspace = :workspace and t.status in {asked_states}
union all
select t.id from tasks t
where (t.status in ('pending', 'waiting_approval', 'retrying', 'failed', 'dead_lettered') or (t.status = 'ready' and t.hold is not null))
  and t.workspace = :workspace and t.status in {asked_states}
limit :most

-- name: list_few_tasks
-- A page of these tasks, oldest first.
-- rows few: id uuid
select t.id from {few} join tasks t on t.id = few.id
where t.workspace = :workspace and (cast(:after as {postgres: uuid}{sqlite: text}) is null or t.id > :after)
  and {filtered}
order by t.id limit :count

-- name: list_newest_few_tasks
-- rows few: id uuid
select t.id from {few} join tasks t on t.id = few.id
where t.workspace = :workspace and (cast(:after as {postgres: uuid}{sqlite: text}) is null or t.id < :after)
  and {filtered}
order by t.id desc limit :count

-- name: list_tasks
-- A page of tasks by id, oldest first, through whichever filters are given.
select t.id from tasks t
where t.workspace = :workspace and (cast(:after as {postgres: uuid}{sqlite: text}) is null or t.id > :after)
  and {filtered}
order by t.id limit :count

-- name: list_newest_tasks
-- The same, newest first: an index is read in one direction, so each order has its own statement.
select t.id from tasks t
where t.workspace = :workspace and (cast(:after as {postgres: uuid}{sqlite: text}) is null or t.id < :after)
  and {filtered}
order by t.id desc limit :count

-- name: count_tasks
-- Counts per state, with the same filters.
select t.status, count(*) as total from tasks t where t.workspace = :workspace and {filtered} group by t.status

-- part: found
with found(id) as {postgres: materialized} (
  select {postgres: w.task_id from search_words w where w.words @@ cast(cast(:tsquery as text) as tsquery)}
    {sqlite: e.task_id from search_words w cross join search_entries e on e.number = w.rowid where w.search_words match :fts5}
    and not exists (select 1 from {changed} where changed.id = {postgres: w.task_id}{sqlite: e.task_id})
  union all select matching.id from {matching}
)

-- name: list_found_tasks
-- The same for tasks found by a search: in the index, or among those changed since it was last written.
-- rows changed: id uuid
-- rows matching: id uuid
{found}
select t.id from found {sqlite: cross }join tasks t on t.id = found.id
where t.workspace = :workspace and (cast(:after as {postgres: uuid}{sqlite: text}) is null or t.id > :after)
  and {filtered}
order by t.id limit :count

-- name: list_newest_found_tasks
-- rows changed: id uuid
-- rows matching: id uuid
{found}
select t.id from found {sqlite: cross }join tasks t on t.id = found.id
where t.workspace = :workspace and (cast(:after as {postgres: uuid}{sqlite: text}) is null or t.id < :after)
  and {filtered}
order by t.id desc limit :count

-- name: count_found_tasks
-- rows changed: id uuid
-- rows matching: id uuid
{found}
select t.status, count(*) as total from found {sqlite: cross }join tasks t on t.id = found.id
where t.workspace = :workspace and {filtered} group by t.status

-- name: tasks_of_dag
select t.id, t.workspace, t.status, t.root_id, t.newest_id, t.cost, t.fence,
  case when t.agent_id is null then 0 else t.attempt_cost end as live_cost from tasks t
where (t.dag_id = :dag and t.dag_id <> t.id) or (t.id = :dag and t.dag_id = t.id) order by t.id

-- name: edges_of_dag
select e.dependent, e.dependency from tasks t join edges e on e.dependent = t.root_id where ((t.dag_id = :dag and t.dag_id <> t.id) or (t.id = :dag and t.dag_id = t.id)) and t.id = t.root_id

-- name: edges_into_dag
-- Tasks of a DAG that have dependents, in whichever DAG.
select distinct e.dependency from tasks t join edges e on e.dependency = t.root_id where ((t.dag_id = :dag and t.dag_id <> t.id) or (t.id = :dag and t.dag_id = t.id)) and t.id = t.root_id

-- name: tag_counts
select t.status, count(*) as total from tags g join tasks t on t.id = g.task_id
where g.workspace = :workspace and g.tag = :tag and t.newest_id is null group by t.status

-- name: read_archive
select * from archive where id = :id

-- name: own_names
-- The names that submitters gave these tasks, if any.
-- rows items: id uuid
select t.id, t.external_id from {items} join tasks t on t.id = items.id where t.external_id is not null
union all
select a.id, a.external_id from {items} join archive a on a.id = items.id where a.external_id is not null

-- name: find_archived_name
select id from archive where workspace = :workspace and external_id = :name

-- part: numbers
-- Of all workspaces, since any of them may fill a gap in the numbers. Expands only as many rows as numbers are requested.
{postgres: select e.seq, e.row_seq from single_events e
where e.row_seq > :after and e.seq > :after and e.row_seq <= (
  select max(x.seq) from (
    select r.seq, sum(r.has) over (order by r.seq) - r.has as before from (
      select n.seq, case when n.seqs is null then least(coalesce(n.size, 1), n.seq - :after) else 1 end as has
      from events n where n.seq > :after order by n.seq limit :count) as r
  ) as x where x.before < :count)
order by e.seq limit :count}{sqlite: select seq, seq as row_seq from events where seq > :after order by seq limit :count}

-- name: event_numbers
{numbers}

-- name: event_stretch
-- The end of so many events, and how many there are; without sending their numbers, one by one, to be compared.
select max(numbers.seq) as last, max(numbers.row_seq) as last_row, count(*) as size from ({numbers}) as numbers

-- name: last_event
select max(seq) as seq from events

-- part: of_task
-- Every event of the task :id, also those that share a row with others.
select e.seq, e.at, e.workspace, e.task_id, e.dag_id, e.verb, e.path, e.actor, e.request_id, e.fence, e.reason, e.data
from events e where e.task_id = :id
{postgres: union all
select coalesce(e.seqs[p.place], e.seq - e.size + p.place), e.at, e.workspace, cast(:id as uuid), cast(:id as uuid), e.verb, e.path,
  e.actor, e.request_id, e.fences[p.place], e.reason, e.data
from events e cross join lateral (select array_position(e.task_ids, cast(:id as uuid)) as place) as p
where e.task_ids @> array[cast(:id as uuid)]}

-- name: events_of_task
select e.*, coalesce(t.type, a.type) as type
from ({of_task}) as e left join tasks t on t.id = e.task_id left join archive a on a.id = e.task_id and t.id is null
where e.seq > :after order by e.seq limit :count

-- name: moves_of_task
select * from ({of_task}) as e where e.path is not null order by e.seq

-- name: event_writers
select virtualtransaction as holder from pg_locks where relation = 'events'::regclass and mode = 'RowExclusiveLock' and granted
  and pid <> pg_backend_pid() and database = (select oid from pg_database where datname = current_database())

-- name: event_writers (sqlite)
select '' as holder where false

-- name: read_gates
select * from gates where workspace = :workspace order by scope, kind, agent_id

-- name: close_gate
insert into gates (workspace, scope, kind, reason, closed_at, closed_by) values (:workspace, :scope, :kind, :reason, :now, :actor)
on conflict (workspace, scope, kind, agent_id) do nothing

-- name: open_gate
delete from gates where workspace = :workspace and scope = :scope and kind = :kind returning scope

-- name: lanes_of_workspace
select * from lanes where workspace = :workspace

-- name: read_workspace
select * from workspaces where name = :name

-- name: add_workspace
insert into workspaces (name, profile, created_at) values (:name, :profile, :now) on conflict do nothing

-- name: list_workspaces
select * from workspaces order by name

-- name: set_profile
update workspaces set profile = :profile where name = :name

-- name: read_settings
-- A group comes before its keys, so that a key's own value wins.
select * from settings where workspace = :workspace order by scope, key

-- name: settings_of_many
-- The profile and the settings of each of these workspaces, and a row without a key for one that has none.
-- rows items: name text
select items.name, w.profile, w.types_version, s.scope, s.key, s.value from {items} left join workspaces w on w.name = items.name
left join settings s on s.workspace = items.name order by items.name, s.scope, s.key

-- name: save_setting
insert into settings (workspace, scope, key, value, changed_at, changed_by) values (:workspace, :scope, :key, :value, :now, :actor)
on conflict (workspace, scope, key) do update set value = excluded.value, changed_at = excluded.changed_at, changed_by = excluded.changed_by

-- name: drop_setting
-- Including all keys below it.
delete from settings where workspace = :workspace and scope = :scope and (key = :key or key like :below)

-- name: list_dead_letters
-- Open ones, oldest first, or all that are not hidden.
select d.*, t.dag_id, t.cost from dead_letters d join tasks t on t.id = d.task_id
where d.workspace = :workspace and not d.deleted and (:reviewed_too or not d.reviewed)
  and (cast(:signature as text) is null or d.signature = :signature)
  and (cast(:after as {postgres: uuid}{sqlite: text}) is null or d.task_id > :after)
order by d.task_id, d.round limit :count

-- name: letter_groups
select signature, type, reason, count(*) as total, min(dead_lettered_at) as first_at, max(dead_lettered_at) as last_at,
  min(error) as example from dead_letters
where workspace = :workspace and not reviewed and not deleted group by signature, type, reason order by count(*) desc, signature limit :count

-- name: review_letters
-- save dead_letters by task_id uuid, round int: resolution text, reviewed boolean, deleted boolean

-- name: insert_reviews
-- insert reviews: task_id uuid, round int, at float, actor text, decision text, note text, change json

-- name: reviews_of
select * from reviews where task_id = :id order by seq

-- name: letters_by_signature
select d.task_id from dead_letters d join tasks t on t.id = d.task_id and t.round = d.round
where d.workspace = :workspace and d.signature = :signature and not d.reviewed and not d.deleted order by d.task_id limit :count

-- name: purgeable
select t.id from tasks t where t.workspace = :workspace and (cast(:type as text) is null or t.type = :type)
  and (cast(:tag as text) is null or exists (select 1 from tags g where g.workspace = t.workspace and g.tag = :tag and g.task_id = t.id))
  and (cast(:before as {postgres: double precision}{sqlite: real}) is null or t.created_at < :before)
  and (cast(:least as {postgres: double precision}{sqlite: real}) is null or t.priority >= :least)
  and (cast(:most as {postgres: double precision}{sqlite: real}) is null or t.priority < :most)
  and t.status in (select {postgres: jsonb_array_elements_text(cast(:statuses as jsonb))}{sqlite: value from json_each(:statuses)})
  and t.id > :after
order by t.id limit :count


-- name: read_dag
select * from dags where id = :id

-- name: ahead_in_lane
select count(*) as ahead from (
  select t.id from tasks t where t.lane = :lane and t.status = 'ready' and t.hold is null
    and (t.rank, t.ordered_at, t.id) < (:rank, :ordered_at, :id) limit :most) as before

-- name: events_upto
-- Of one workspace or of all, with the type of the task if it still exists.
select e.*, coalesce(t.type, a.type) as type, coalesce(t.external_id, a.external_id) as external_id
from single_events e left join tasks t on t.id = e.task_id left join archive a on a.id = e.task_id and t.id is null
where e.row_seq > :after and e.row_seq <= :last_row and e.seq > :after and e.seq <= :last and (cast(:workspace as text) is null or e.workspace = :workspace) order by e.seq

-- name: claims_of_request
-- The tasks still held under the claim of one request, by an agent, or by a runtime for all its agents.
select t.id from tasks t join events e on {postgres: (e.task_id = t.id or e.task_ids @> array[t.id])}{sqlite: e.task_id = t.id} and e.verb = 'claimed'
  and {postgres: coalesce(e.fence, e.fences[array_position(e.task_ids, t.id)])}{sqlite: e.fence} = t.fence
where (t.agent_id = :who or t.runtime_id = :who) and t.workspace = :workspace and t.status <> 'validating'
  and e.request_id = :request
  and (cast(:holder as text) is null or t.holder = :holder)
order by e.seq, t.id

-- name: claims_made_at
-- The tasks still held under the claim that an agent made in the transaction of this time.
select t.id, t.fence from tasks t join events e on {postgres: (e.task_id = t.id or e.task_ids @> array[t.id])}{sqlite: e.task_id = t.id} and e.verb = 'claimed'
  and {postgres: coalesce(e.fence, e.fences[array_position(e.task_ids, t.id)])}{sqlite: e.fence} = t.fence
where t.agent_id = :agent and t.runtime_id = :runtime and t.workspace = :workspace and t.claimed_at = :at and t.status <> 'validating'
  and coalesce(e.request_id, '') = :request and coalesce(t.holder, '') = :holder
order by t.id

-- name: newest_of_issue
select id from tasks where workspace = :workspace and issue_id = :issue order by id desc limit 1

-- name: index_names
-- Valid indexes only: one whose creation was interrupted exists but is not used.
select c.relname as name from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indisvalid and c.relnamespace = (select relnamespace from pg_class where oid = 'tasks'::regclass)

-- name: index_names (sqlite)
select name from sqlite_master where type = 'index'
