-- Open alerts about a task are found when a person decides about it.
create index idx_alerts_open_task on alerts (task_id) where acknowledged_at is null and task_id is not null;
