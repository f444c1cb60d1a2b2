-- name: lock_windows
-- rows items: workspace text, provider text, account text
select w.* from {items} join account_windows w on w.workspace = items.workspace and w.provider = items.provider
  and w.account = items.account
order by w.workspace, w.provider, w.account, w.model, w.name {postgres: for update of w}

-- name: list_windows
select * from account_windows where workspace = :workspace order by provider, account, model, length_sec, name

-- name: save_windows
-- rows items: workspace text, provider text, account text, model text, name text, length_sec float, unit text, capacity float, used float, claims bigint, per_claim float, resets_at float
insert into account_windows (workspace, provider, account, model, name, length_sec, unit, capacity, used, claims, per_claim, resets_at, updated_at)
select workspace, provider, account, model, name, length_sec, unit, capacity, used, claims, per_claim, resets_at,
  cast(:now as {postgres: double precision}{sqlite: real}) from {items} where true
on conflict (workspace, provider, account, model, name) do update set length_sec = excluded.length_sec, unit = excluded.unit,
  capacity = excluded.capacity, used = excluded.used, claims = excluded.claims, per_claim = excluded.per_claim,
  resets_at = excluded.resets_at, updated_at = excluded.updated_at

-- name: remove_windows
delete from account_windows where workspace = :workspace and provider = :provider and account = :account returning name

-- name: accounts_of_claims
-- The accounts with windows that these claims use: the one assigned with the claim, otherwise its agent's.
-- rows items: id uuid, fence bigint, workspace text, agent_id text
select distinct items.id, items.fence, items.workspace, w.provider, w.account from {items}
join agents a on a.workspace = items.workspace and a.id = items.agent_id
left join claim_accounts c on c.task_id = items.id and c.fence = items.fence
join account_windows w on w.workspace = items.workspace and w.provider = a.provider and w.account = coalesce(c.account, a.account)

-- name: running_on_accounts
select a.provider, coalesce(c.account, a.account) as account, count(*) as total from tasks t
join agents a on a.workspace = t.workspace and a.id = t.agent_id
left join claim_accounts c on c.task_id = t.id and c.fence = t.fence
where t.workspace = :workspace and t.agent_id is not null and t.status in ('claimed', 'running') and a.provider is not null
  and coalesce(c.account, a.account) is not null
group by 1, 2

-- name: save_claim_accounts
-- rows items: id uuid, fence bigint, account text
insert into claim_accounts (task_id, fence, account) select id, fence, account from {items} where true
on conflict (task_id) do update set fence = excluded.fence, account = excluded.account

-- name: delete_claim_accounts
-- rows items: id uuid
delete from claim_accounts where task_id in (select items.id from {items})

-- name: has_other_account
select exists (
  select 1 from agents a where a.workspace = :workspace and a.status = 'active' and a.provider is not null
    and (a.accounts is not null or (a.account is not null and (a.provider <> :provider or a.account <> :account)))
) as found
