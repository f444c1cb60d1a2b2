"""Whether there is room is read from what waits alone, however much has ended and however much waits elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from tests.plans.test_postgres_plans import Hot, explain, rows_of, walk
from tests.plans.test_sqlite_plans import plan_of, steps
from tests.services import Databases

ENDED = 200_000
ELSEWHERE = 100_000
WAITING = 3_000
HELD = 1_000
ALL = ENDED + ELSEWHERE + WAITING + HELD
LETTERS = 50_000
NOW = 1_765_800_000.0

_STATE = f"""case when n <= {ENDED} then 'completed' when n <= {ALL - HELD} then 'ready' else 'running' end"""
_HELD = f"case when n > {ALL - HELD} then {{0}} end"
FILL = [
    f"""insert into tasks (id, workspace, type, status, lane, rank, ordered_at, priority, boost, path_weight, dag_id,
      root_id, max_attempts, tallied, agent_id, runtime_id, claimed_at, started_at, run_until, lease_check_at,
      finished_at, created_at, updated_at)
    select {{uuid}}, case when n > {ENDED} and n <= {ENDED + ELSEWHERE} then 'other' else 'default' end, 'code',
      {_STATE}, 1, 50, {NOW} + n, case n % 3 when 0 then 20 when 1 then 50 else 70 end, 0.1, 0, {{uuid}}, {{uuid}}, 3,
      {{true}}, {_HELD.format("'a'")}, {_HELD.format("'a'")}, {_HELD.format(NOW)}, {_HELD.format(NOW)},
      {_HELD.format(NOW + 3600)}, {_HELD.format(NOW)}, case when n <= {ENDED} then {NOW} end, {NOW} + n, {NOW}
    from {{numbers}} where n <= {ALL}""",
    f"""insert into dead_letters (task_id, round, workspace, type, reason, signature, attempts, poison_pill,
      dead_lettered_at)
    select {{uuid}}, 1, 'default', 'code', case when n % 1000 = 0 then 'displaced' else 'crash' end, 's', 1, {{false}},
      {NOW} + n from {{numbers}} where n <= {LETTERS}""",
]
SQLITE = {
    "uuid": "printf('00000000-0000-7000-8000-%012x', n)",
    "numbers": f"(with recursive r(n) as (select 1 union all select n + 1 from r where n < {ALL}) select n from r)",
    "true": "1",
    "false": "0",
}
POSTGRES = {
    "uuid": "('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid",
    "numbers": f"generate_series(1, {ALL}) n",
    "true": "true",
    "false": "false",
}

OURS = {"workspace": "default"}
PLAIN = {"depends": False, "recent": False, "retried": False, "recent_from": NOW + ALL, "level": "low", "count": 5}
ASKED = [
    Hot("tally", OURS, "idx_tasks_tally", WAITING),
    Hot("tally_more_than", {"count": 100, **OURS}, "idx_tasks_tally", 100),
    Hot("givers", {**PLAIN, **OURS}, "idx_tasks_tally", 10),
    Hot("displaced_letters", {"level": "low", "count": 5, **OURS}, "idx_dead_letters_displaced", 2 * LETTERS // 1000),
    Hot("displaced_workspaces", {}, "idx_dead_letters_displaced", LETTERS // 1000),
    Hot("stuck_tasks", {"now": NOW, "share": 0.8, "count": 100, **OURS}, "idx_tasks_heartbeat", HELD),
]
TABLES = {"tasks", "dead_letters"}
MOST_STEPS = 60_000
"""Of SQLite's machine; a walk over what has ended takes more than a million."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("limited") / "queue.db"

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
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)
def test_sqlite_reads_what_waits_alone(connection: apsw.Connection, asked: Hot, analysed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    if analysed:
        connection.execute("analyze").fetchall()
    plan = plan_of(connection, asked.name, asked.parameters)
    assert any(f"INDEX {asked.path}" in line for line in plan), plan
    assert steps(connection, asked.name, asked.parameters) < MOST_STEPS


@pytest.fixture
async def server(postgres: Databases, migrated_template: str) -> AsyncIterator[asyncpg.Connection]:
    name = postgres.create_database(migrated_template)
    opened = await asyncpg.connect(postgres.dsn(name), command_timeout=120)
    yield opened
    await opened.close()
    postgres.drop_database(name)


@pytest.mark.timeout(180)  # the fill takes a few seconds, and more on a busy machine
async def test_postgres_reads_what_waits_alone(server: asyncpg.Connection) -> None:
    for table in TABLES:
        await server.execute(f"alter table {table} set (autovacuum_enabled = false)")
    for statement in FILL:
        await server.execute(statement.format(**POSTGRES))
    assert await complaints(server, "never analysed") == []
    await server.execute("analyze tasks, dead_letters")
    assert await complaints(server, "analysed") == []


async def complaints(server: asyncpg.Connection, state: str) -> list[str]:
    found = []
    for mode in ("force_custom_plan", "force_generic_plan"):
        for asked in ASKED:
            nodes = list(walk(await explain(server, asked, mode)))
            scans = [n for n in nodes if n.get("Relation Name") in TABLES and "Scan" in n["Node Type"]]
            indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
            read = sum(rows_of(node) for node in scans)
            if asked.path not in indexes:
                found.append(f"{state}, {mode}, {asked.name}: uses {sorted(indexes)}, not {asked.path}")
            if read > asked.rows:
                found.append(f"{state}, {mode}, {asked.name}: reads {read} rows, not {asked.rows}")
    return found
