"""Steps and effects are found by index, however many there are."""

from typing import Any

import pytest

from tests.plans.asked import NOW, Hot
from tests.plans.filled import Filled, complaints, uuid

ROWS = 100_000
OF_A_TASK = 1_000
OPEN = 50
TABLES = {"steps", "effects"}
TASK = uuid(7)

# A hundred tasks with a thousand steps each, and as many effects, of which the last fifty are open.
FILL = [
    f"""insert into steps (task_id, name, place, fence, began_at, done_at, result)
    select {{uuid}}, 'step ' || n, 1 + n / 100, 1, {NOW}, {NOW}, '1' from {{numbers}}""",
    f"""insert into effects (workspace, key, task_id, fence, begun_by, began_at, done_at)
    select 'default', 'key ' || n, {{uuid}}, 1, 'x.1', {NOW}, case when n > {ROWS - OPEN} then null else {NOW} end
    from {{numbers}}""",
]

PAGE: dict[str, Any] = {"workspace": "default", "after": "", "count": 100}
ASKED = [
    Hot("read_step", {"task": TASK, "name": "step 7"}, "steps_pkey", 1),
    Hot("last_step", {"task": TASK}, "idx_steps_place", 1),
    Hot("list_steps", {"task": TASK, "workspace": "default", "after": 500, "count": 100}, "idx_steps_place", 500),
    Hot("lock_effect", {"workspace": "default", "key": "key 7"}, "effects_pkey", 1),
    Hot("open_effects", {"task": TASK}, "idx_effects_task idx_effects_open", OF_A_TASK),
    Hot("effect_with_key", {"workspace": "default", "key": "key 7"}, "effects_pkey", 1),
    Hot("effects_of_task", {"task": TASK, "open_only": False, **PAGE}, "idx_effects_task", OF_A_TASK),
    Hot("list_effects", PAGE, "effects_pkey", 100),
    Hot("list_open_effects", PAGE, "idx_effects_open", OPEN),
]
MAX_STEPS = 60_000
"""Of SQLite's machine; reading either table once takes ten times as many."""


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_step_and_effect_statements_use_their_index(store_url: str) -> None:
    assert await complaints(store_url, Filled(FILL, ROWS, ASKED, TABLES, MAX_STEPS, "n % 100")) == []
