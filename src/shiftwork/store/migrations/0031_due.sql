-- When a scheduled task was to start: its age counts from then. Null for one that was to start at once.
alter table tasks add column due_at <float>;
