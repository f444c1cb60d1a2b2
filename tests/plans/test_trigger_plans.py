"""Ten thousand schedules cost what is due of them; firings are found by index, however many there were."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from shiftwork import Queue
from tests.plans.filled import database, fill_and_complain, fill_sqlite, postgres_words, sqlite_words, undone
from tests.plans.test_postgres_plans import Hot
from tests.plans.test_sqlite_plans import plan_of, steps
from tests.services import Databases

SCHEDULES = 10_000
DUE = 20
NOW = 1_765_800_000.0
TABLES = {"triggers", "firings"}
SEVENTH = "00000000-0000-7000-8000-000000000007"

FILL = [
    f"""insert into triggers (id, workspace, name, kind, source, template, overlap, tick_at, next_at, after_seq,
      created_at, created_by, updated_at)
    select {{uuid}}, 'default', 'schedule-' || n, 'cron', '{{{{}}}}', '{{{{}}}}', 'allow', {NOW} + n, {NOW} + n, 0,
      {NOW}, 'a', {NOW} from {{numbers}}""",
    f"""insert into firings (trigger_id, key, at, outcome, tasks, dag_id, depth)
    select {{uuid}}, 'tick:' || n, {NOW} + n, 'fired', '[]', {{uuid}}, 0 from {{numbers}}""",
]
SQLITE, POSTGRES = sqlite_words(SCHEDULES), postgres_words(SCHEDULES)

OF_SEVENTH: dict[str, Any] = {"trigger_id": SEVENTH}
WATCHED = [
    Hot("due_triggers", {"now": NOW + DUE, "count": 500}, "idx_triggers_due", DUE),
    Hot("following_triggers", {}, "idx_triggers_following", 0),
    Hot("file_triggers", {}, "idx_triggers_files", 0),
    Hot("list_firings", {**OF_SEVENTH, "count": 20}, "idx_firings_recent", 1),
    Hot("firing_depths", {"items": [(SEVENTH,)]}, "idx_firings_dag", 2),
    Hot("delete_firings", {"before": NOW + DUE, "count": 500}, "idx_firings_at", 4 * DUE),
]
MOST_STEPS = 5_000
"""Of SQLite's machine; reading all schedules once takes more."""


async def make(url: str) -> None:
    await (await Queue.open(url)).close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_sqlite(tmp_path_factory.mktemp("triggers"), FILL, SQLITE, make)


@pytest.fixture
def connection(filled: Path) -> Iterator[apsw.Connection]:
    with undone(filled) as opened:
        yield opened


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("watched", WATCHED, ids=lambda watched: watched.name)
def test_sqlite_reads_what_is_due(connection: apsw.Connection, watched: Hot, analysed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    if analysed:
        connection.execute("analyze").fetchall()
    plan = plan_of(connection, watched.name, watched.parameters)
    assert any(f"INDEX {watched.path}" in line for line in plan), plan
    assert steps(connection, watched.name, watched.parameters) < MOST_STEPS


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_postgres_reads_what_is_due(postgres: Databases, migrated_template: str) -> None:
    async with database(postgres, migrated_template) as (_, server):
        assert await fill_and_complain(server, FILL, POSTGRES, WATCHED, TABLES) == []
