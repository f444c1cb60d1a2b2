"""Ten thousand schedules cost only what is due; firings are found by index."""

from typing import Any

import pytest

from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints, uuid

SCHEDULES = 10_000
DUE = 20
TABLES = {"triggers", "firings"}
SEVENTH = uuid(7)

FILL = [
    f"""insert into triggers (id, workspace, name, kind, source, template, overlap, tick_at, next_at, after_seq,
      created_at, created_by, updated_at)
    select {{uuid}}, 'default', 'schedule-' || n, 'cron', '{{{{}}}}', '{{{{}}}}', 'allow', {NOW} + n, {NOW} + n, 0,
      {NOW}, 'a', {NOW} from {{numbers}}""",
    f"""insert into firings (trigger_id, key, at, outcome, tasks, dag_id, depth)
    select {{uuid}}, 'tick:' || n, {NOW} + n, 'fired', '[]', {{uuid}}, 0 from {{numbers}}""",
]

OF_SEVENTH: dict[str, Any] = {"trigger_id": SEVENTH}
ASKED = [
    Hot("due_triggers", {"now": NOW + DUE, "count": 500}, "idx_triggers_due", DUE),
    Hot("following_triggers", {}, "idx_triggers_following", 0),
    Hot("file_triggers", {}, "idx_triggers_files", 0),
    Hot("list_firings", {**OF_SEVENTH, "count": 20}, "idx_firings_recent", 1),
    Hot("firing_depths", {"items": [(SEVENTH,)]}, "idx_firings_dag", 2),
    Hot("delete_firings", {"before": NOW + DUE, "count": 500}, "idx_firings_at", 4 * DUE),
]
MAX_STEPS = 5_000
"""Of SQLite's machine; reading all schedules once takes more."""


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_trigger_statements_read_only_due_rows(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, SCHEDULES, ASKED, TABLES, MAX_STEPS)) == []
