"""A polling bridge reads only the tasks it carries, however many tasks and dead letters there are."""

import pytest

from tests.plans.asked import Hot
from tests.plans.filled import Filled, complaints
from tests.plans.test_capacity_plans import ALL, FILL, MAX_STEPS

CARRIED = 500
PUBLISHED = f"""insert into published (task_id, number, workspace, bridge, fence, published_at)
    select {{uuid}}, 1, 'default', case when n <= {CARRIED} then 'redis' else 'other' end, 1, 0
    from {{numbers}} where n <= 20000"""
OURS = {"workspace": "default", "bridge": "redis"}
ASKED = [
    Hot("open_published", OURS, "idx_published_bridge", 3 * CARRIED),
    Hot("count_unread", OURS, "idx_published_bridge", CARRIED),
    Hot("anything_ready", {}, "idx_tasks_claimable", 1),
]
TABLES = {"tasks", "dead_letters", "published"}


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_bridge_statements_read_only_carried_tasks(store_url: str) -> None:
    assert await complaints(store_url, Filled([*FILL, PUBLISHED], ALL, ASKED, TABLES, MAX_STEPS)) == []
