-- PostgreSQL keeps the events of one call that does the same to many tasks as one row: `task_ids` and `fences` say which
-- tasks and claims, `size` how many, `seq` is the number of the last of these events, and `seqs` has all of them unless they follow each
-- other. Each of these tasks is a DAG of its own. SQLite, where a row costs less, has a row for each event as before.
-- The checks are not made for rows that are there already, which have none of it: that would read a large table under a lock.
-- Readers use the view `single_events`; `row_seq` is the number by which a row is found, at most 4095 above an event's own.
{pg: alter table events add column task_ids uuid[], add column fences bigint[], add column seqs bigint[], add column size int,
  add check (task_ids is null or (task_id is null and cardinality(task_ids) = size)) not valid,
  add check (seqs is null or (cardinality(seqs) = size and seq - seqs[1] < 4096)) not valid};
{pg: create index idx_events_batch on events using gin (task_ids) with (gin_pending_list_limit = 1024) where task_ids is not null};

create view single_events as
  select e.seq as row_seq, {lite: e.seq}{pg: coalesce(e.seqs[b.place], e.seq - coalesce(e.size, 1) + b.place)} as seq, e.at,
    e.workspace, {lite: e.task_id, e.dag_id}{pg: b.task_id, case when e.task_ids is null then e.dag_id else b.task_id end as dag_id}, e.verb,
    e.path, e.actor, e.request_id, {lite: e.fence}{pg: b.fence}, e.reason, e.data
  from events e {pg: cross join lateral unnest(coalesce(e.task_ids, array[e.task_id]), coalesce(e.fences, array[e.fence]))
    with ordinality as b(task_id, fence, place)};

-- The document's view reads single events; PostgreSQL rewrites it from its own text.
-- locks: the block replaces one view and touches no row.
{pg: do $$ begin
  execute 'create or replace view event_log as ' || replace(pg_get_viewdef(to_regclass('event_log'), true), ' events e', ' single_events e');
end $$};
