"""A DAG of 100,000 ready tasks without budget costs a claim, a grant and a refund no more than one of ten."""

import pytest

from tests.plans.asked import NOW, PLACE, Hot
from tests.plans.filled import Filled, complaints, uuid

EACH = 100_000
ALL = 3 * EACH
HELD_DAG, OPEN_DAG = "aaaaaaaa-0000-7000-8000-000000000001", "aaaaaaaa-0000-7000-8000-000000000002"
BUDGETS = 20_000

FILL = [
    f"""insert into tasks (id, workspace, type, status, hold, lane, rank, ordered_at, priority, boost, path_weight,
      dag_id, root_id, max_attempts, estimated_cost, budget_id, created_at, updated_at)
    select {{uuid}}, 'default', 'code', 'ready', case when n <= {EACH} then 'budget' end, 1, n, {NOW} + n, 50, 0.1, 0,
      {{uuid}}, {{uuid}}, 3, 500000, cast(case when n <= {EACH} then '{HELD_DAG}' when n <= {2 * EACH} then '{OPEN_DAG}'
      end as {{uuid_type}}), {NOW}, {NOW} from {{numbers}} where n <= {ALL}""",
    f"""insert into budgets (id, workspace, kind, owner, ceiling, closed_at)
    select {{uuid}}, 'default', 'dag', 'dag-' || n, 100, case when n % 1000 = 0 then {NOW} end
    from {{numbers}} where n <= {BUDGETS}""",
    f"""insert into budgets (id, workspace, kind, owner, ceiling, closed_at) values
      ('{HELD_DAG}', 'default', 'dag', 'held', 0, {NOW}), ('{OPEN_DAG}', 'default', 'dag', 'open', 0, {NOW})""",
    f"""insert into costs (task_id, fence, model, workspace, type, dag_id, agent_id, claimed_at, cost,
      tokens_in, tokens_out)
    select {{uuid}}, 1, 'm', 'default', 'code', {{uuid}}, 'a', {NOW} + n, 1, 1, 1 from {{numbers}} where n <= {EACH}""",
    f"""insert into charges (task_id, fence, budget_id, granted)
    select {{uuid}}, 1, '{HELD_DAG}', 1 from {{numbers}} where n <= {EACH}""",
    "insert into bodies select id, '{{}}' from tasks",
]

FIRST = "00000000-0000-0000-0000-000000000000"
SPAN = {"workspace": "default", "since": NOW + EACH - 50, "until": 1e308}

ASKED = [
    Hot("take_from_lane", {"lane": 1, "count": 1, "now": NOW, **PLACE}, "idx_tasks_claimable", 1),
    Hot("hold_under", {"id": OPEN_DAG, "rest": 0, "count": 50, "now": NOW}, "idx_tasks_budget", 100),
    Hot("held_under", {"id": HELD_DAG, "count": 20}, "idx_tasks_budget_held", 40),
    Hot("held_under", {"id": uuid(7), "count": 20}, "idx_tasks_budget_held", 0),
    Hot("read_chains", {"items": [(uuid(n),) for n in range(1, 21)]}, "budgets_pkey", 60),
    Hot("closed_budgets", {"after": FIRST, "count": 500}, "idx_budgets_closed", BUDGETS // 1000 + 2),
    Hot("counting_budgets", {"after": FIRST, "days": False, "count": 1}, "idx_budgets_counting", 0),
    Hot("counting_budgets", {"after": FIRST, "days": True, "count": 10}, "idx_budgets_counting", 0),
    Hot("claims_to_count", {"after": FIRST, "count": 500, **SPAN}, "idx_tasks_holder", 0),
    Hot("charge_ended", {"id": uuid(7), **SPAN}, "idx_costs_workspace", 200),
    Hot("spent_by_removed", SPAN, "idx_costs_workspace", 120),
    Hot("charges_of", {"items": [(uuid(n), 1) for n in range(1, 101)]}, "charges_pkey", 100),
    Hot("spent_since", {"workspace": "default", "since": NOW + EACH - 50}, "idx_costs_workspace", 60),
    Hot("cost_groups", {"by": "type", "count": 100, **SPAN}, "idx_costs_workspace", 60),
]
TABLES = {"tasks", "budgets", "charges", "costs"}
MAX_STEPS = 40_000
"""Of SQLite's machine; a walk over one of the DAGs takes more than half a million."""


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_budget_statements_read_only_granted_tasks(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, ALL, ASKED, TABLES, MAX_STEPS)) == []
