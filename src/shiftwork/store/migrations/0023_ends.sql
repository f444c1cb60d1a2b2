-- An edge with `any_end` is satisfied by the end of its dependency, whatever the outcome. `failure` says how a dependency
-- ended without success that satisfied the edge; a later retry of that dependency does not change it.
alter table edges add column any_end <boolean> not null default false;
alter table edges add column failure <json>;
