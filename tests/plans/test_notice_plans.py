"""Beside a hundred thousand notifications that arrived, the few that have not are found by index."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.plans.filled import database, fill_and_complain, fill_sqlite, postgres_words, sqlite_words, undone
from tests.plans.test_postgres_plans import Hot
from tests.plans.test_sqlite_plans import plan_of, steps
from tests.services import Databases

COUNT = 100_000
SINKS = 20
NOW = 1_765_800_000.0
TABLES = {"deliveries", "sinks"}

# Every thousandth waits, every thousandth was given up.
FILL = [
    f"""insert into sinks (id, workspace, name, kind, address, wants, allow_private, created_at, created_by,
      events_after, alerts_after)
    select 'sink_' || n, 'default', 'ops-' || n, 'webhook', 'https://example.com', '{{{{}}}}', {{false}}, {NOW}, 'ada',
      0, 0
    from {{numbers}} where n <= {SINKS}""",
    f"""insert into deliveries (id, workspace, sink_id, source, seq, type, message, notice, status, attempts,
      created_at, next_at, ended_at)
    select 'msg_' || (1000000 + n), 'default', 'sink_' || (1 + n % {SINKS}), 'event', n, 'task.created', 'x',
      '{{{{}}}}', case n % 1000 when 0 then 'pending' when 1 then 'dead' else 'sent' end, 1, {NOW} + n, {NOW} + n,
      case n % 1000 when 0 then null else {NOW} + n end
    from {{numbers}} where n <= {COUNT}""",
]
SQLITE, POSTGRES = sqlite_words(COUNT), postgres_words(COUNT)
LATE = NOW + 2 * COUNT
PAGE = {"workspace": "default", "sink": None, "after": None, "count": 50}
LEASE = {"sink": "sink_1", "now": LATE, "until": LATE, "give_up": LATE, "count": 4}
ASKED = [
    Hot("sinks_with_due", {"now": LATE}, "idx_deliveries_due", 2 * SINKS + 100),
    Hot("lease_deliveries", LEASE, "idx_deliveries_due", 20),
    Hot("sinks_to_read_for", {"most": 10_000}, "idx_deliveries_due", 2 * SINKS + COUNT // 1000),
    Hot("list_deliveries", {**PAGE, "status": None}, "idx_deliveries_workspace deliveries_pkey", 200),
    Hot(
        "list_unsent_deliveries",
        {**PAGE, "status": "dead"},
        "idx_deliveries_unsent idx_deliveries_dead",
        COUNT // 500 + 200,
    ),
    Hot("redeliver_dead", {"sink": "sink_2", "now": LATE, "before": LATE, "count": 5}, "idx_deliveries_dead", 20),
    Hot("delete_old_deliveries", {"before": NOW + 5, "count": 500}, "idx_deliveries_ended", 30),
]
MOST_STEPS = 40_000
"""Of SQLite's machine; reading the table whole takes many times more."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_sqlite(tmp_path_factory.mktemp("told"), FILL, SQLITE)


@pytest.fixture
def connection(filled: Path) -> Iterator[apsw.Connection]:
    with undone(filled) as opened:
        yield opened


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)
def test_sqlite_finds_them(connection: apsw.Connection, asked: Hot, analysed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    if analysed:
        connection.execute("analyze").fetchall()
    plan = plan_of(connection, asked.name, asked.parameters)
    assert any(f"INDEX {index}" in line for line in plan for index in asked.path.split()), plan
    assert steps(connection, asked.name, asked.parameters) < MOST_STEPS


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_postgres_finds_them(postgres: Databases, migrated_template: str) -> None:
    async with database(postgres, migrated_template) as (_, server):
        assert await fill_and_complain(server, FILL, POSTGRES, ASKED, TABLES) == []
