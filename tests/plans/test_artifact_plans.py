"""Artifacts are found by index, however many are kept: by what refers to them, what is claimed, and what collects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.plans.filled import database, fill_and_complain, fill_sqlite, postgres_words, sqlite_words, undone
from tests.plans.test_postgres_plans import Hot
from tests.plans.test_sqlite_plans import steps
from tests.services import Databases

KEPT = 100_000
IDLE = 20
NOW = 1_765_800_000.0
SOME = [(f"hash-{n}",) for n in range(100, 110)]
TABLES = {"artifacts", "artifact_uses"}

# Two workspaces; nearly all are used, by one task each, and twenty are idle.
FILL = [
    f"""insert into artifacts (workspace, hash, size, media_type, place, digests, created_at, created_by, idle_since)
    select case n % 2 when 0 then 'default' else 'other' end, 'hash-' || n, 1, 'text/plain', 'place-' || n, '', {NOW},
      'me', case when n <= {IDLE} then {NOW} end from {{numbers}}""",
    f"""insert into artifact_uses (task_id, role, hash, name, workspace, at, actor)
    select {{uuid}}, 'input', 'hash-' || n, '', case n % 2 when 0 then 'default' else 'other' end, {NOW}, 'me'
    from {{numbers}} where n > {IDLE}""",
]
SQLITE, POSTGRES = sqlite_words(KEPT), postgres_words(KEPT)
OURS: dict[str, Any] = {"workspace": "default"}
TASK = "00000000-0000-7000-8000-000000000100"
WATCHED = [
    Hot("hold_artifacts", {"items": SOME, **OURS}, "artifacts_pkey", 10),
    Hot("find_artifacts", {"items": SOME, **OURS}, "artifacts_pkey", 10),
    Hot("want_artifacts", {"items": SOME, **OURS}, "artifacts_pkey idx_artifacts_idle", 20),
    Hot("artifacts_of_task", {"id": TASK, **OURS}, "artifact_uses_pkey", 2),
    Hot("workspaces_with_idle", {}, "idx_artifacts_idle", IDLE),
    Hot("lock_old_artifacts", {"before": NOW, "count": 500, **OURS}, "idx_artifacts_idle", 2 * IDLE),
    Hot("delete_old_artifacts", {"items": SOME, **OURS}, "artifacts_pkey", 40),
    Hot("known_places", {"items": [(f"place-{n}",) for n in range(10)]}, "artifacts_place_key", 10),
]
MOST_STEPS = 3_000
"""Of SQLite's machine; reading the table once takes a hundred times as many."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_sqlite(tmp_path_factory.mktemp("artifacts"), FILL, SQLITE)


@pytest.fixture
def connection(filled: Path) -> Iterator[apsw.Connection]:
    with undone(filled) as opened:
        yield opened


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("watched", WATCHED, ids=lambda watched: watched.name)
def test_sqlite_reads_no_more_than_it_tells(connection: apsw.Connection, watched: Hot, analysed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    if analysed:
        connection.execute("analyze").fetchall()
    assert steps(connection, watched.name, watched.parameters) < MOST_STEPS


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_postgres_reads_no_more_than_it_tells(postgres: Databases, migrated_template: str) -> None:
    async with database(postgres, migrated_template) as (_, server):
        assert await fill_and_complain(server, FILL, POSTGRES, WATCHED, TABLES) == []
