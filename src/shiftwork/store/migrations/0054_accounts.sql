-- How far the windows of accounts at providers are used: as providers report it, and as attempts count it.
-- A window without a unit is known from reports alone: its capacity is 1.
create table account_windows (
  workspace text not null,
  provider text not null,
  account text not null,
  model text not null default '',
  name text not null,
  length_sec <float>,
  unit text check (unit in ('tokens', 'usd', 'tasks')),
  capacity <float> not null check (capacity > 0),
  used <float> not null default 0 check (used >= 0),
  claims <bigint> not null default 0,
  per_claim <float> not null default 0,
  resets_at <float>,
  updated_at <float> not null,
  primary key (workspace, provider, account, model, name)
){lite: strict};

-- The account that came with a claim, where its agent has several.
create table claim_accounts (
  task_id <uuid> primary key,
  fence <bigint> not null,
  account text not null
){lite: strict};
alter table agents add column accounts <json>;
