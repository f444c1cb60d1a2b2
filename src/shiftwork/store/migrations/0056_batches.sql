-- Tasks that were sent to a provider in one request. What was asked is in the tasks; here is only which, and how far it is.
create table batches (
  id <uuid> primary key,
  workspace text not null,
  provider text not null,
  model text not null,
  status text not null check (status in ('gathered', 'posting', 'posted', 'ended')),
  requests <int> not null,
  created_at <float> not null,
  expires_at <float> not null,
  posting_at <float>,
  posted_at <float>,
  cancel_asked_at <float>,
  ended_at <float>,
  external_id text,
  error text,
  check (status <> 'posted' or external_id is not null)
){lite: strict};
create unique index idx_batches_external on batches (provider, external_id) where external_id is not null;
create index idx_batches_open on batches (provider, created_at) where status <> 'ended';
create index idx_batches_workspace on batches (workspace, created_at);
create table batch_items (
  batch_id <uuid> not null references batches (id) on delete cascade,
  place <int> not null,
  task_id <uuid> not null,
  fence <bigint> not null,
  status text not null check (status in ('open', 'completed', 'failed', 'released', 'late')),
  primary key (batch_id, place)
){lite: strict};
create index idx_batch_items_task on batch_items (task_id);
