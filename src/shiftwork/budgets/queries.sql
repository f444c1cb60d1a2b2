-- name: insert_budgets
-- insert budgets: id uuid, workspace text, kind text, owner text, parent_id uuid, ceiling bigint, spent bigint, counted_to uuid
on conflict do nothing

-- name: find_budget
select * from budgets where workspace = :workspace and kind = :kind and owner = :owner

-- name: read_chains
-- These budgets and all above them.
-- rows items: id uuid
with recursive chain(id) as (
  select items.id from {items}
  union
  select (select b.parent_id from budgets b where b.id = chain.id) from chain where chain.id is not null
) select b.* from chain cross join budgets b where b.id = chain.id

-- name: lock_budgets
-- rows items: id uuid
select b.* from {items} join budgets b on b.id = items.id order by b.id {postgres: for update of b}

-- name: save_budgets
-- For locked rows.
-- save budgets by id uuid: ceiling bigint, granted bigint, spent bigint, told int, closed_at float, counted_to uuid

-- name: list_budgets
-- Newest days first; a DAG or a task keeps its place.
select * from budgets where workspace = :workspace and (cast(:kind as text) is null or kind = :kind)
order by case kind when 'day' then 0 else 1 end, case kind when 'day' then owner end desc, id desc limit :count

-- name: dag_ceilings
-- rows items: workspace text, id text
select b.owner as dag_id, b.ceiling from {items} join budgets b on b.workspace = items.workspace and b.kind = 'dag' and b.owner = items.id

-- name: insert_charges
-- insert charges: task_id uuid, fence bigint, budget_id uuid, granted bigint

-- name: add_charges
-- Inserts missing budgets, and returns them.
-- rows items: task_id uuid, fence bigint, budget_id uuid, granted bigint
insert into charges (task_id, fence, budget_id, granted) select task_id, fence, budget_id, granted from {items} where true
on conflict do nothing returning task_id, fence

-- name: charges_of
-- rows items: task_id uuid, fence bigint
select c.* from {items} join charges c on c.task_id = items.task_id and c.fence = items.fence

-- name: settle_charges
-- rows items: task_id uuid, fence bigint
update charges set granted = 0 from {items} where charges.task_id = items.task_id and charges.fence = items.fence

-- name: delete_charges
-- rows items: id uuid
delete from charges where task_id in (select items.id from {items})

-- name: book_costs
-- rows items: task_id uuid, fence bigint, model text, workspace text, type text, dag_id uuid, agent_id text, claimed_at float, cost bigint, tokens_in bigint, tokens_out bigint
insert into costs (task_id, fence, model, workspace, type, dag_id, agent_id, claimed_at, cost, tokens_in, tokens_out)
select task_id, fence, model, workspace, type, dag_id, agent_id, claimed_at, cost, tokens_in, tokens_out from {items} where true
on conflict (task_id, fence, model) do update set cost = costs.cost + excluded.cost,
  tokens_in = costs.tokens_in + excluded.tokens_in, tokens_out = costs.tokens_out + excluded.tokens_out

-- name: spent_since
select coalesce(sum(cost), 0) as cost from costs where workspace = :workspace and claimed_at >= :since

-- name: spent_between
select coalesce(sum(cost), 0) as cost from costs where workspace = :workspace and claimed_at >= :since and claimed_at < :until

-- name: cost_groups
-- Costs by group; a day is the number of days since 1970.
select case cast(:by as text) when 'task' then cast(c.task_id as text) when 'dag' then cast(c.dag_id as text)
  when 'agent' then c.agent_id when 'model' then c.model when 'type' then c.type
  else cast(cast({postgres: floor(c.claimed_at / 86400)}{sqlite: c.claimed_at / 86400} as {postgres: bigint}{sqlite: integer}) as text) end as value,
  sum(c.cost) as cost, sum(c.tokens_in) as tokens_in, sum(c.tokens_out) as tokens_out,
  count(distinct cast(c.task_id as text) || '.' || cast(c.fence as text)) as attempts
from costs c where c.workspace = :workspace and c.claimed_at >= :since and c.claimed_at < :until
group by 1 order by 2 desc, 1 limit :count

-- name: hold_under
-- Removes tasks that this budget cannot pay for from the claim index. Locked rows are left to the next run.
-- (On PostgreSQL as an array, one budget at a time: if the planner believes that the table is empty, it would look up all
-- tasks of all budgets again for each row.)
with recursive under(id) as (
  select cast(:id as {postgres: uuid}{sqlite: text})
  union all
  select b.id from under join budgets b on b.parent_id = under.id
)
update tasks set hold = 'budget', version = version + 1, updated_at = :now where id {postgres: = any(array(
  select t.id from under cross join lateral (
    select x.id from tasks x where x.budget_id = under.id and x.status = 'ready' and x.hold is null
      and coalesce(x.estimated_cost > :rest, :rest <= 0) limit :count for update skip locked) t limit :count))}{sqlite: in (
  select t.id from under join tasks t on t.budget_id = under.id and t.status = 'ready' and t.hold is null
  where coalesce(t.estimated_cost > :rest, :rest <= 0) limit :count)} returning id, lane

-- name: held_under
-- The first tasks held back under a budget.
with recursive under(id) as (
  select cast(:id as {postgres: uuid}{sqlite: text})
  union all
  select b.id from under join budgets b on b.parent_id = under.id
)
select t.id from {postgres: under cross join lateral (
  select x.id, x.rank, x.ordered_at from tasks x where x.budget_id = under.id and x.hold = 'budget'
  order by x.rank, x.ordered_at, x.id limit :count) t}{sqlite: under cross join tasks t where t.id in (
  select x.id from tasks x where x.budget_id = under.id and x.hold = 'budget' order by x.rank, x.ordered_at, x.id limit :count)}
order by t.rank, t.ordered_at, t.id limit :count

-- name: lock_held
-- Locks the tasks that only their budget holds back; skips locked ones.
-- rows items: id uuid
select t.id, t.workspace, t.type, t.lane, t.rank, t.ordered_at, t.budget_id, t.estimated_cost from {items} join tasks t on t.id = items.id
where t.hold = 'budget' and t.status || '' = 'ready' order by t.rank, t.ordered_at, t.id {postgres: for update of t skip locked}

-- name: free_held
-- rows items: id uuid
update tasks set hold = null, version = version + 1, updated_at = :now from {items} where tasks.id = items.id

-- name: closed_budgets
select * from budgets where closed_at is not null and id > :after order by id limit :count

-- name: counting_budgets
-- Budgets that are still being counted: those of days, or all others.
select * from budgets where counted_to is not null and (kind = 'day') = :days and id > :after order by id limit :count

-- name: tasks_to_count
-- The next tasks of a DAG that gets a budget.
select t.id from tasks t where ((t.dag_id = :dag and t.dag_id <> t.id) or (t.id = :dag and t.dag_id = t.id)) and t.id > :after
order by t.id limit :count

-- name: claims_to_count
-- The next running attempts that are charged to a day. (An inner query, because in id order all tasks would be scanned.)
with held as materialized (
  select t.id from tasks t where t.agent_id is not null and t.workspace || '' = :workspace
    and t.claimed_at >= :since and t.claimed_at < :until
) select held.id from held where held.id > :after order by held.id limit :count

-- name: charge_claims
-- Charges the running attempts of these locked rows from now on.
-- rows items: id uuid
update tasks set charged = agent_id is not null from {items} where tasks.id = items.id

-- name: charge_ended
-- Ended attempts of this day that were not charged to it, with their costs.
insert into charges (task_id, fence, budget_id, granted)
select distinct c.task_id, c.fence, cast(:id as {postgres: uuid}{sqlite: text}), 0 from costs c join tasks t on t.id = c.task_id
where c.workspace = :workspace and c.claimed_at >= :since and c.claimed_at < :until and (t.agent_id is null or t.fence <> c.fence)
on conflict do nothing
returning (select sum(c.cost) from costs c where c.task_id = charges.task_id and c.fence = charges.fence) as cost

-- name: spent_by_removed
-- The costs of removed tasks, which no charge can reference.
select coalesce(sum(c.cost), 0) as cost from costs c where c.workspace = :workspace and c.claimed_at >= :since and c.claimed_at < :until
  and not exists (select 1 from tasks t where t.id = c.task_id)

-- name: put_under
-- Puts tasks without a budget under this one; their attempts are charged from now on.
-- rows items: id uuid
update tasks set budget_id = coalesce(budget_id, cast(:budget as {postgres: uuid}{sqlite: text})), charged = agent_id is not null
from {items} where tasks.id = items.id

-- name: join_trees
-- Puts a DAG's trees without another budget under the DAG's.
update budgets set parent_id = cast(:budget as {postgres: uuid}{sqlite: text}) where kind = 'tree' and parent_id is null and id in (
  select t.budget_id from tasks t where t.budget_id is not null and ((t.dag_id = :dag and t.dag_id <> t.id) or (t.id = :dag and t.dag_id = t.id)))
