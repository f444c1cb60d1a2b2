"""What observers ask again and again stays cheap on a long history: it is read by index, and little of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.plans.filled import database, fill_and_complain, fill_sqlite, postgres_words, sqlite_words, undone
from tests.plans.test_postgres_plans import Hot
from tests.plans.test_sqlite_plans import plan_of, steps
from tests.services import Databases

EVENTS = 300_000
ALERTS = 100_000
OPEN = 50
DAGS = 50_000
FAILED_DAGS = 20
NOW = 1_765_800_000.0
TASK = "00000000-0000-7000-8000-000000000007"
NEWEST = {"created_at": 1e308, "id": "ffffffff-ffff-ffff-ffff-ffffffffffff"}
TABLES = {"events", "alerts", "dags"}

# Two workspaces; one event in a hundred is a failure; nearly all alerts are acknowledged and nearly all DAGs completed.
FILL = [
    f"""insert into events (at, workspace, task_id, verb, path, actor, fence, reason, data)
    select {NOW} + n, case n % 3 when 0 then 'other' else 'default' end, {{uuid}},
      case n % 100 when 7 then 'failed' when 8 then 'completed' else 'claimed' end, 'ready>claimed', 'a', 1, 'crash',
      '{{{{"type": "code", "agent": "a", "signature": "s"}}}}' from {{numbers}} where n <= {EVENTS}""",
    f"""insert into alerts (at, workspace, kind, severity, message, data, acknowledged_at)
    select {NOW} + n, 'default', 'dead_lettered', 'warning', 'x', '{{{{}}}}',
      case when n > {ALERTS - OPEN} then null else {NOW} + n end from {{numbers}} where n <= {ALERTS}""",
    f"""insert into dags (id, workspace, status, open, created_at) select {{uuid}}, 'default',
      case when n <= {FAILED_DAGS} then 'failed' else 'completed' end, 0, {NOW} + n
    from {{numbers}} where n <= {DAGS}""",
]
SQLITE, POSTGRES = sqlite_words(EVENTS), postgres_words(EVENTS)

OURS: dict[str, Any] = {"workspace": "default"}
END = {"after": ALERTS - 1000, "last": 2**62, "kind": None, "count": 100, **OURS}
WATCHED = [
    Hot("last_event", {}, "events_pkey", 1),
    Hot("event_at", {"seq": EVENTS - 20_000}, "events_pkey", 1),
    Hot(
        "recent_flow",
        {"first": EVENTS - 999, "last": EVENTS, "since": NOW, "minute": NOW, **OURS},
        "events_pkey",
        1000,
    ),
    Hot("recent_failures", {"count": 10, **OURS}, "idx_events_failed", 10),
    Hot("failure_patterns", {"by": "type", "since": NOW + EVENTS - 1000, "count": 50, **OURS}, "idx_events_failed", 10),
    Hot("moves_of_task", {"id": TASK}, "idx_events_task", 1),
    Hot("alerts_after", END, "idx_alerts_workspace or alerts_pkey", 100),
    Hot("open_alerts_after", {**END, "after": 0}, "idx_alerts_open", OPEN),
    Hot("delete_alerts", {"before": NOW + 20, "count": 500, **OURS}, "idx_alerts_acknowledged", 20 * 3),
    Hot("list_dags", {**NEWEST, "count": 100, **OURS}, "idx_dags_workspace", 100),
    Hot("list_dags_in", {**NEWEST, "status": "failed", "count": 100, **OURS}, "idx_dags_status", FAILED_DAGS),
]
MOST_STEPS = 30_000
"""Of SQLite's machine; reading the failures alone once takes more."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_sqlite(tmp_path_factory.mktemp("observed"), FILL, SQLITE)


@pytest.fixture
def connection(filled: Path) -> Iterator[apsw.Connection]:
    with undone(filled) as opened:
        yield opened


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("watched", WATCHED, ids=lambda watched: watched.name)
def test_sqlite_reads_no_more_than_it_tells(connection: apsw.Connection, watched: Hot, analysed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    if analysed:
        connection.execute("analyze").fetchall()
    plan = plan_of(connection, watched.name, watched.parameters)
    if watched.path != "events_pkey":  # there it is the table itself
        assert any(f"INDEX {watched.path.split()[0]}" in line for line in plan), plan
    assert steps(connection, watched.name, watched.parameters) < MOST_STEPS


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_postgres_reads_no_more_than_it_tells(postgres: Databases, migrated_template: str) -> None:
    async with database(postgres, migrated_template) as (_, server):
        assert await fill_and_complain(server, FILL, POSTGRES, WATCHED, TABLES) == []
