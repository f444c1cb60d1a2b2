-- name: insert_outputs
-- insert outputs: task_id uuid, fence bigint, judge_id uuid, result json, handed_in_at float

-- name: read_outputs
-- rows items: id uuid
select o.* from {items} join outputs o on o.task_id = items.id

-- name: drop_output
delete from outputs where task_id = :id returning fence, judge_id, result

-- name: output_of_judge
-- The output that a judging task, named by the root of its lineage, judges.
select o.task_id, o.fence from outputs o where o.judge_id = :judge

-- name: mark_judge
-- Marks a judging task: accepting its output is a verdict on another's, whose author should not give it.
update tasks set validation = :validation, last_agent_id = :author where id = :id

-- name: lose_judges
-- No verdict will come from these judging tasks: the next reclaim handles the outputs they were to judge.
-- rows items: id uuid
update tasks set run_until = :now, lease_check_at = :now
where status || '' = 'validating' and id in (select o.task_id from {items} join outputs o on o.judge_id = items.id)

-- name: mark_incomplete
-- Returns a row if this attempt was not marked before.
insert into missing_reports (task_id, fence, at) values (:id, :fence, :now)
on conflict (task_id) do update set fence = excluded.fence, at = excluded.at where missing_reports.fence < excluded.fence
returning task_id

-- name: incomplete_marks
-- rows items: id uuid, fence bigint
select m.task_id from {items} join missing_reports m on m.task_id = items.id and m.fence = items.fence

-- name: delete_outputs
-- rows items: id uuid
delete from outputs where task_id in (select items.id from {items})

-- name: delete_missing_reports
-- rows items: id uuid
delete from missing_reports where task_id in (select items.id from {items})
