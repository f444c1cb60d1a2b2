-- What metrics count of an event is written with it: the type of its task, and how long that had waited or run. Events of one
-- call share a type; `spans` has the seconds of each on PostgreSQL. Older events have neither, and metrics look them up.
alter table events add column type text;
alter table events add column seconds <float>;
{pg: alter table events add column spans double precision[]};

-- PostgreSQL takes each array apart once, not once for each of its events.
{lite: drop view single_events};
{pg: create or replace}{lite: create} view single_events as
  select e.seq as row_seq, {lite: e.seq}{pg: coalesce(b.seq, e.seq - coalesce(e.size, 1) + b.place)} as seq, e.at,
    e.workspace, {lite: e.task_id, e.dag_id}{pg: b.task_id, case when e.task_ids is null then e.dag_id else b.task_id end as dag_id}, e.verb,
    e.path, e.actor, e.request_id, {lite: e.fence}{pg: b.fence}, e.reason, e.data, e.type, {lite: e.seconds}{pg: b.seconds}
  from events e {pg: cross join lateral unnest(coalesce(e.task_ids, array[e.task_id]), coalesce(e.fences, array[e.fence]),
    coalesce(e.spans, array[e.seconds]), e.seqs) with ordinality as b(task_id, fence, seconds, seq, place)};
