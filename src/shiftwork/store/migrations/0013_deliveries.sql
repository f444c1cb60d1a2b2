-- Where notifications go. One that was removed stays until its deliveries are gone. `events_after` and `alerts_after` say
-- how far the log and the alerts have been read for it.
create table sinks (
  id text primary key,
  workspace text not null,
  name text not null,
  kind text not null check (kind in ('webhook', 'slack', 'email')),
  address text not null,
  server text,
  sender text,
  secret text,
  wants <json> not null,
  allow_private <boolean> not null,
  created_at <float> not null,
  created_by text not null,
  removed_at <float>,
  paused_at <float>,
  pause_reason text,
  failures <int> not null default 0 check (failures >= 0),
  rests_until <float>,
  failing <boolean> not null default false,
  last_error text,
  events_after <bigint> not null,
  alerts_after <bigint> not null
){lite: strict};
create unique index idx_sinks_name on sinks (workspace, name) where removed_at is null;

-- One notification to one sink; `attempts` grows when it is taken to be sent, so that the end of an older attempt is known.
create table deliveries (
  id text primary key,
  workspace text not null,
  sink_id text not null,
  source text not null check (source in ('event', 'alert', 'test')),
  seq <bigint>,
  type text not null,
  message text not null,
  notification <json> not null,
  status text not null check (status in ('pending', 'sent', 'dead')),
  attempts <int> not null default 0 check (attempts >= 0),
  created_at <float> not null,
  next_at <float> not null,
  give_up_at <float>,
  ended_at <float>,
  error text,
  check ((status = 'pending') = (ended_at is null)),
  check ((source = 'test') = (seq is null))
){lite: strict};
create unique index idx_deliveries_once on deliveries (sink_id, source, seq, type);
create index idx_deliveries_due on deliveries (sink_id, next_at, id) where status = 'pending';
create index idx_deliveries_ended on deliveries (ended_at) where status <> 'pending';
create index idx_deliveries_dead on deliveries (sink_id, ended_at, id) where status = 'dead';
create index idx_deliveries_workspace on deliveries (workspace, id);
create index idx_deliveries_unsent on deliveries (workspace, id) where status <> 'sent';
