-- What the answers of a batch have cost so far, in millionths of a dollar. Batches that were answered before have none.
alter table batches add column cost <bigint> not null default 0;
