"""Passed deadlines are found by index, however many passed before or are to come."""

import pytest

from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints

ANNOUNCED, TO_COME, DUE = 50_000, 50_000, 50
ALL = ANNOUNCED + TO_COME + DUE

_DEADLINE = f"case when n <= {ANNOUNCED} then {NOW} - n when n <= {ANNOUNCED + DUE} then {NOW} - 1 else {NOW} + n end"
FILL = [
    f"""insert into tasks (id, workspace, type, status, lane, rank, ordered_at, priority, boost, path_weight, dag_id,
      root_id, max_attempts, deadline, passed_deadline, created_at, updated_at)
    select {{uuid}}, 'default', 'code', 'ready', 1, 50, {NOW} + n, 50, 0.1, 0, {{uuid}}, {{uuid}}, 3, {_DEADLINE},
      case when n <= {ANNOUNCED} then {_DEADLINE} end, {NOW}, {NOW} from {{numbers}} where n <= {ALL}""",
]
ASKED = [
    Hot("due_deadlines", {"now": NOW, "count": 500}, "idx_tasks_deadline", 2 * DUE),
    Hot("look", {"serial_idle": 5.0}, "idx_tasks_deadline", 10),
]
MAX_STEPS = 5_000


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_deadline_statements_read_only_due_tasks(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, ALL, ASKED, {"tasks"}, MAX_STEPS)) == []
