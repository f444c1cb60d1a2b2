-- Whether anything depends on a task, or its DAG has other tasks. A statement that has locked a task asks this in its middle:
-- a volatile function sees what was committed until then, the statement itself only what was committed when it began.
{postgres: create function has_ties(task uuid) returns boolean language plpgsql volatile set search_path from current as $$
begin
  return exists (select 1 from edges e where e.dependency = task and not e.satisfied) or exists (select 1 from dags d where d.id = task);
end $$};
