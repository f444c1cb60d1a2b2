-- name: listen_for_results
insert into result_listeners (id, until) values (:id, :until) on conflict (id) do update set until = excluded.until

-- name: stop_listening_for_results
-- Including processes that ended without deregistering.
delete from result_listeners where id = :id or until < :now

-- name: ended_lineages
-- Of the awaited lineages, by their roots, those whose newest row has ended, or that are gone.
-- rows items: id uuid
select items.id from {items} left join tasks r on r.id = items.id left join tasks t on t.id = coalesce(r.newest_id, r.id)
where t.id is null or t.status in ('completed', 'cancelled', 'failed', 'dead_lettered')

-- name: ended_dags
-- A standalone task is a DAG without a row of its own.
-- rows items: id uuid
select items.id from {items} left join dags d on d.id = items.id left join tasks t on t.id = items.id
where d.status <> 'open'
  or d.id is null and (t.id is null or t.status in ('completed', 'cancelled', 'failed', 'dead_lettered'))
