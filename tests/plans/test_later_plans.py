"""What is due is found by index among 100,000 tasks that are scheduled or will expire."""

from typing import Any

import pytest

from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints

SCHEDULED, DUE = 100_000, 50
ALL = SCHEDULED + DUE

FILL = [
    f"""insert into tasks (id, workspace, type, status, hold, lane, rank, ordered_at, priority, boost, path_weight,
      dag_id, root_id, waiting, max_attempts, expires_at, created_at, updated_at)
    select {{uuid}}, 'default', 'code', 'pending', 'scheduled', 1, 50, {NOW} + n, 50, 0.1, 0, {{uuid}}, {{uuid}}, 1, 3,
      {NOW} + n - {DUE}, {NOW}, {NOW} from {{numbers}} where n <= {ALL}""",
    f"""insert into waits (root_id, name, task_id, workspace, kind, status, began_at, until)
    select {{uuid}}, '', {{uuid}}, 'default', 'time', 'open', {NOW}, {NOW} + n - {DUE} from {{numbers}}
    where n <= {ALL}""",
]
LANE: dict[str, Any] = {"lane": 1, "rank": -1e308, "ordered_at": 0.0, "id": "00000000-0000-0000-0000-000000000000"}
ASKED = [
    Hot("due_waits", {"now": NOW, "count": 500}, "idx_waits_due", DUE),
    Hot("due_expiries", {"now": NOW, "count": 500}, "idx_tasks_expiry", 2 * DUE),
    Hot("look", {"serial_idle": 5.0}, "idx_tasks_expiry", 10),
    Hot("take_from_lane", {**LANE, "count": 100, "now": NOW}, "idx_tasks_claimable", 0),
]
MAX_STEPS = 5_000


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_statements_read_only_what_is_due(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, ALL, ASKED, {"tasks", "waits"}, MAX_STEPS)) == []
