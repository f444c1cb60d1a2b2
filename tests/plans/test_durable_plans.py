"""Steps and effects are found by index however many there are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.plans.filled import database, fill_and_complain, fill_sqlite, postgres_words, sqlite_words, undone
from tests.plans.test_postgres_plans import Hot
from tests.plans.test_sqlite_plans import plan_of, steps
from tests.services import Databases

ROWS = 100_000
OF_A_TASK = 1_000
OPEN = 50
NOW = 1_765_800_000.0
TABLES = {"steps", "effects"}
TASK = "00000000-0000-7000-8000-000000000007"

# A hundred tasks with a thousand steps each, and as many effects, of which the last fifty are open.
FILL = [
    f"""insert into steps (task_id, name, place, fence, began_at, done_at, result)
    select {{uuid}}, 'step ' || n, 1 + n / 100, 1, {NOW}, {NOW}, '1' from {{numbers}}""",
    f"""insert into effects (workspace, key, task_id, fence, begun_by, began_at, done_at)
    select 'default', 'key ' || n, {{uuid}}, 1, 'x.1', {NOW}, case when n > {ROWS - OPEN} then null else {NOW} end
    from {{numbers}}""",
]
SQLITE, POSTGRES = sqlite_words(ROWS, "n % 100"), postgres_words(ROWS, "n % 100")

PAGE: dict[str, Any] = {"workspace": "default", "after": "", "count": 100}
ASKED = [
    Hot("read_step", {"task": TASK, "name": "step 7"}, "steps_pkey sqlite_autoindex_steps_1", 1),
    Hot("last_step", {"task": TASK}, "idx_steps_place", 1),
    Hot("list_steps", {"task": TASK, "workspace": "default", "after": 500, "count": 100}, "idx_steps_place", 500),
    Hot("lock_effect", {"workspace": "default", "key": "key 7"}, "effects_pkey sqlite_autoindex_effects_1", 1),
    Hot("open_effects", {"task": TASK}, "idx_effects_task idx_effects_open", OF_A_TASK),
    Hot("effect_with_key", {"workspace": "default", "key": "key 7"}, "effects_pkey sqlite_autoindex_effects_1", 1),
    Hot("effects_of_task", {"task": TASK, "open_only": False, **PAGE}, "idx_effects_task", OF_A_TASK),
    Hot("list_effects", PAGE, "effects_pkey sqlite_autoindex_effects_1", 100),
    Hot("list_open_effects", PAGE, "idx_effects_open", OPEN),
]
MOST_STEPS = 60_000
"""Of SQLite's machine; reading either table once takes ten times as many."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_sqlite(tmp_path_factory.mktemp("durable"), FILL, SQLITE)


@pytest.fixture
def connection(filled: Path) -> Iterator[apsw.Connection]:
    with undone(filled) as opened:
        yield opened


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)
def test_sqlite_uses_the_index(connection: apsw.Connection, asked: Hot, analysed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    if analysed:
        connection.execute("analyze").fetchall()
    plan = plan_of(connection, asked.name, asked.parameters)
    assert any(f"INDEX {index}" in line for line in plan for index in asked.path.split()), plan
    assert steps(connection, asked.name, asked.parameters) < MOST_STEPS


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_postgres_uses_the_index(postgres: Databases, migrated_template: str) -> None:
    async with database(postgres, migrated_template) as (_, server):
        assert await fill_and_complain(server, FILL, POSTGRES, ASKED, TABLES) == []
