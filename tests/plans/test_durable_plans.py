"""Steps and effects are found by index however many there are."""

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
SQLITE = {
    "uuid": "printf('00000000-0000-7000-8000-%012x', n % 100)",
    "numbers": f"(with recursive r(n) as (select 1 union all select n + 1 from r where n < {ROWS}) select n from r)",
}
POSTGRES = {
    "uuid": "('00000000-0000-7000-8000-' || lpad(to_hex(n % 100), 12, '0'))::uuid",
    "numbers": f"generate_series(1, {ROWS}) n",
}

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
    file = tmp_path_factory.mktemp("durable") / "queue.db"

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
def test_sqlite_uses_the_index(connection: apsw.Connection, asked: Hot, analysed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    if analysed:
        connection.execute("analyze").fetchall()
    plan = plan_of(connection, asked.name, asked.parameters)
    assert any(f"INDEX {index}" in line for line in plan for index in asked.path.split()), plan
    assert steps(connection, asked.name, asked.parameters) < MOST_STEPS


@pytest.fixture
async def server(postgres: Databases, migrated_template: str) -> AsyncIterator[asyncpg.Connection]:
    name = postgres.create_database(migrated_template)
    opened = await asyncpg.connect(postgres.dsn(name), command_timeout=120)
    yield opened
    await opened.close()
    postgres.drop_database(name)


async def test_postgres_uses_the_index(server: asyncpg.Connection) -> None:
    for table in TABLES:
        await server.execute(f"alter table {table} set (autovacuum_enabled = false)")
    for statement in FILL:
        await server.execute(statement.format(**POSTGRES))
    assert await complaints(server, "never analysed") == []
    await server.execute("analyze steps, effects")
    assert await complaints(server, "analysed") == []


async def complaints(server: asyncpg.Connection, state: str) -> list[str]:
    found = []
    for mode in ("force_custom_plan", "force_generic_plan"):
        for asked in ASKED:
            nodes = list(walk(await explain(server, asked, mode)))
            scans = [n for n in nodes if n.get("Relation Name") in TABLES and "Scan" in n["Node Type"]]
            indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
            read = sum(rows_of(node) for node in scans)
            if indexes.isdisjoint(asked.path.split()):
                found.append(f"{state}, {mode}, {asked.name}: uses {sorted(indexes)}, not {asked.path}")
            if read > asked.rows:
                found.append(f"{state}, {mode}, {asked.name}: reads {read} rows, not {asked.rows}")
    return found
