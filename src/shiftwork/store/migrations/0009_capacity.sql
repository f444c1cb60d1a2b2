-- What is not as it should be now: told once when it begins and once when it is over.
create table conditions (
  workspace text not null,
  kind text not null,
  subject text not null,
  alert text not null,
  since <float> not null,
  primary key (workspace, kind, subject)
){lite: strict};

create index idx_dead_letters_displaced on dead_letters (workspace, dead_lettered_at) where reason = 'displaced' and not reviewed;
create index idx_alerts_open_kind on alerts (workspace, kind) where acknowledged_at is null;
