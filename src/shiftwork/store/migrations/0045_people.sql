-- Where people open the dashboard, as the server that was last started with --public-url says: notifications link to it.
create table public_urls (
  name text primary key,
  url text not null,
  set_at <float> not null
){lite: strict};

-- locks: there are few sinks, and the new check allows all that the old one did.
-- A kind of sink more. SQLite cannot change a check, so that its table is made anew.
{pg: alter table sinks drop constraint sinks_kind_check};
{pg: alter table sinks add constraint sinks_kind_check check (kind in ('webhook', 'slack', 'email', 'apprise'))};
{lite: create table sinks_next (
  id text primary key,
  workspace text not null,
  name text not null,
  kind text not null check (kind in ('webhook', 'slack', 'email', 'apprise')),
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
) strict};
{lite: insert into sinks_next select * from sinks};
{lite: drop table sinks};
{lite: alter table sinks_next rename to sinks};
{lite: create unique index idx_sinks_name on sinks (workspace, name) where removed_at is null};
