-- What retention has removed is counted here, so that created = the sum over states + archive + tombstones + pruned.
create table pruned (
  workspace text primary key,
  tasks <bigint> not null
){lite: strict};
create index idx_archive_age on archive (workspace, archived_at);
create index idx_tombstones_age on tombstones (workspace, at);
