"""What observers ask again and again stays cheap on a long history: it is read by index, and little of it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from tests.plans.test_postgres_plans import Hot, explain, rows_of, walk
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
SQLITE = {
    "uuid": "printf('00000000-0000-7000-8000-%012x', n)",
    "numbers": f"(with recursive r(n) as (select 1 union all select n + 1 from r where n < {EVENTS}) select n from r)",
}
POSTGRES = {
    "uuid": "('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid",
    "numbers": f"generate_series(1, {EVENTS}) n",
}

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
    file = tmp_path_factory.mktemp("observed") / "queue.db"

    async def make() -> None:
        await (await Queue.open(f"sqlite:///{file}")).close()

    asyncio.run(make())
    connection = apsw.Connection(str(file))
    connection.execute("pragma synchronous = off")
    for statement in FILL:
        connection.execute(statement.format(**SQLITE))
    connection.close()
    return file


@pytest.fixture
def connection(filled: Path) -> Iterator[apsw.Connection]:
    opened = apsw.Connection(str(filled))
    opened.execute("begin")
    yield opened
    opened.execute("rollback")
    opened.close()


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("watched", WATCHED, ids=lambda watched: watched.name)
def test_sqlite_reads_no_more_than_it_tells(connection: apsw.Connection, watched: Hot, analysed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    if analysed:
        connection.execute("analyze").fetchall()
    plan = plan_of(connection, watched.name, watched.parameters)
    if watched.path != "events_pkey":  # there it is the table itself
        assert any(f"INDEX {watched.path.split()[0]}" in line for line in plan), plan
    assert steps(connection, watched.name, watched.parameters) < MOST_STEPS


@pytest.fixture(scope="module")
def large(postgres: Databases, migrated_template: str) -> Iterator[str]:
    name = postgres.create_database(migrated_template)
    yield postgres.dsn(name)
    postgres.drop_database(name)


@pytest.fixture
async def server(large: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(large, command_timeout=120)
    yield opened
    await opened.close()


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_postgres_reads_no_more_than_it_tells(server: asyncpg.Connection) -> None:
    for table in TABLES:
        await server.execute(f"alter table {table} set (autovacuum_enabled = false)")
    for statement in FILL:
        await server.execute(statement.format(**POSTGRES))
    assert await complaints(server, "never analysed") == []
    await server.execute("analyze events, alerts, dags")
    assert await complaints(server, "analysed") == []


async def complaints(server: asyncpg.Connection, state: str) -> list[str]:
    found = []
    for mode in ("force_custom_plan", "force_generic_plan"):
        for watched in WATCHED:
            nodes = list(walk(await explain(server, watched, mode)))
            scans = [n for n in nodes if n.get("Relation Name") in TABLES and "Scan" in n["Node Type"]]
            indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
            read = sum(rows_of(node) for node in scans)
            if indexes.isdisjoint(watched.path.split()):
                found.append(f"{state}, {mode}, {watched.name}: uses {sorted(indexes)}, not {watched.path}")
            if read > watched.rows:
                found.append(f"{state}, {mode}, {watched.name}: reads {read} rows, not {watched.rows}")
    return found
