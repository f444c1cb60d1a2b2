-- Work that stands in somebody else's system: what was offered there, what came from there, and how far it was told.

-- Who carries work over, and when it last did.
create table bridges (
  workspace text not null,
  name text not null,
  role text not null check (role in ('orchestrator', 'worker')),
  seen_at <float> not null,
  events_after <bigint>,
  primary key (workspace, name)
){lite: strict};

-- An entry that offers a task to foreign workers. `number` is the task's version with this offer, `fence` that of its taker.
-- Without a message id it is still to be written, without a consumer nobody is known to have taken it; what has ended is
-- still to be removed from the stream.
create table published (
  task_id <uuid> not null,
  number <bigint> not null,
  workspace text not null,
  bridge text not null,
  fence <bigint> not null,
  message_id text,
  consumer text,
  published_at <float> not null,
  delivered_at <float>,
  ended <boolean> not null default false,
  primary key (task_id, number)
){lite: strict};
create index idx_published_bridge on published (workspace, bridge, ended);

-- Entries of foreign workers that had their effect, kept for as long as one may be delivered again.
create table heard (
  workspace text not null,
  bridge text not null,
  stream text not null,
  message_id text not null,
  at <float> not null,
  primary key (workspace, bridge, stream, message_id)
){lite: strict};
create index idx_heard_at on heard (at);

-- Dead letters as they stand in a stream.
create table letter_entries (
  task_id <uuid> not null,
  round <int> not null,
  workspace text not null,
  bridge text not null,
  message_id text not null,
  primary key (task_id, round)
){lite: strict};
create index idx_letter_entries_bridge on letter_entries (workspace, bridge);

-- Entries of a foreign orchestrator that became tasks here, until they are answered.
create table taken_in (
  workspace text not null,
  bridge text not null,
  message_id text not null,
  task_id <uuid> not null,
  entry <json> not null,
  primary key (workspace, bridge, message_id)
){lite: strict};
