-- name: insert_token
insert into tokens (id, workspace, name, scopes, hash, created_at, created_by, expires_at)
values (:id, :workspace, :name, :scopes, :hash, :now, :actor, :expires_at)

-- name: read_token
select * from tokens where id = :id

-- name: list_tokens
select * from tokens where workspace = :workspace order by created_at, id

-- name: revoke_token
-- The first revocation is kept.
update tokens set revoked_at = :now where workspace = :workspace and id = :id and revoked_at is null returning id
