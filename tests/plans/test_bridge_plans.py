"""A bridge that looks several times a second reads what it carries, however many tasks and dead letters there are."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.plans.filled import database, fill_and_complain, fill_sqlite, undone
from tests.plans.test_capacity_plans import FILL, MOST_STEPS, POSTGRES, SQLITE
from tests.plans.test_postgres_plans import Hot
from tests.plans.test_sqlite_plans import plan_of, steps
from tests.services import Databases

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


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_sqlite(tmp_path_factory.mktemp("bridged"), [*FILL, PUBLISHED], SQLITE)


@pytest.fixture
def connection(filled: Path) -> Iterator[apsw.Connection]:
    with undone(filled) as opened:
        yield opened


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)
def test_sqlite_reads_what_is_carried(connection: apsw.Connection, asked: Hot) -> None:
    plan = plan_of(connection, asked.name, asked.parameters)
    assert any(f"INDEX {asked.path}" in line for line in plan), plan
    assert steps(connection, asked.name, asked.parameters) < MOST_STEPS


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_postgres_reads_what_is_carried(postgres: Databases, migrated_template: str) -> None:
    async with database(postgres, migrated_template) as (_, server):
        assert await fill_and_complain(server, [*FILL, PUBLISHED], POSTGRES, ASKED, TABLES) == []
