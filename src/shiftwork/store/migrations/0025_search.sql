-- What tasks are found by, besides their ids: written by a maintenance job behind the event log, so that no verb pays for
-- it. All of it can be made again from the tasks: copies and snapshots leave it out.

-- The end of a task's written id, backwards, so that a short id is the beginning of it.
create table search_entries (
  {lite: number integer primary key,}
  task_id <uuid> {pg: primary key}{lite: not null unique},
  workspace text not null,
  tail text {pg: collate "C"} not null
){lite: strict};
create index idx_search_entries_tail on search_entries (tail);

-- The words of its title, payload, tags and errors. They are cut apart before they come here, so that both databases find
-- the same.
{pg: create table search_words (
  task_id uuid primary key,
  words tsvector not null
)}{lite: create virtual table search_words using fts5(
  words, content='', contentless_delete=1, detail=none, tokenize='ascii'
)};
{pg: create index idx_search_words on search_words using gin (words)};

-- How far the log was read. Its row is locked by who writes or removes entries.
create table search_marks (
  name text primary key,
  read_to <bigint> not null
){lite: strict};
insert into search_marks (name, read_to) values ('tasks', 0);
