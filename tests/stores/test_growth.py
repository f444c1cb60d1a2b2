"""PostgreSQL statistics are refreshed after loads, so that no plan for an empty queue is used for a full one."""

from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.snapshots.copy import copy
from shiftwork.store import postgres as store
from shiftwork.store import statements
from shiftwork.store.catalogue import tables
from shiftwork.store.postgres_driver_internals import reach_of
from shiftwork.store.postgres_statistics import tell_planner
from tests.plans.asked import NOW, Hot, explain_prepared, prepare, read_of
from tests.worker.steps import until

KNOWN = "select reltuples from pg_class where oid = 'tasks'::regclass"
TASKS = {"tasks"}


@pytest.fixture
async def reader(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Another session on an emptied and vacuumed queue that the server does not analyse by itself."""
    await (await Queue.open(postgres_dsn)).close()
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("alter table tasks set (autovacuum_enabled = false)")
    await connection.execute("vacuum")
    yield connection
    await connection.close()


async def is_known(reader: asyncpg.Connection) -> bool:
    return bool(await reader.fetchval(KNOWN) >= 500)


def one_task(id_: str) -> Hot:
    return Hot("read_tasks", {"items": [(id_,)]}, "tasks_pkey", 1)


async def test_bulk_load_refreshes_the_planner_statistics(postgres_dsn: str, reader: asyncpg.Connection) -> None:
    async with Queue.open(postgres_dsn) as queue:
        nobody = one_task("00000000-0000-7000-8000-000000000000")
        await prepare(reader, nobody, "old")
        assert read_of(await explain_prepared(reader, nobody, "old"), TASKS).rows == 0
        made = await queue.submit_many([{"type": "code"}] * 1000)
        assert await reader.fetchval(KNOWN) == 1000
        asked = one_task(str(await reader.fetchval("select id from tasks limit 1")))
        assert read_of(await explain_prepared(reader, asked, "old"), TASKS).rows == 1, "it was planned to read them all"
        assert len(made) == 1000


async def test_copy_refreshes_the_planner_statistics(
    postgres_dsn: str, reader: asyncpg.Connection, sqlite_url: str
) -> None:
    async with Queue.open(sqlite_url) as queue:
        await queue.submit_many([{"type": "code"}] * 1000)
    await copy(sqlite_url, postgres_dsn)
    assert await reader.fetchval(KNOWN) == 1000


async def test_many_small_loads_refresh_the_statistics(postgres_dsn: str, reader: asyncpg.Connection) -> None:
    async with Queue.open(postgres_dsn) as queue:
        for _ in range(60):
            await queue.submit_many([{"type": "code"}] * 10)

        async def is_known_while_loads_go_on() -> bool:
            """A check during the loads covers a part of them; the next one is due once they have grown."""
            await queue.submit_many([{"type": "code"}] * 10)
            return await is_known(reader)

        await until(is_known_while_loads_go_on)


async def test_refused_load_leaves_only_the_statistics(postgres_dsn: str, reader: asyncpg.Connection) -> None:
    async with Queue.open(postgres_dsn) as queue:
        await reader.execute(
            "create function no() returns trigger language plpgsql as 'begin raise check_violation; end'"
        )
        await reader.execute(
            "create constraint trigger no after insert on bodies initially deferred for each row execute function no()"
        )
        with pytest.raises(Exception, match="PostgreSQL, during the commit: "):
            await queue.submit_many([{"type": "code"}] * 1000)
        await reader.execute("drop trigger no on bodies")
        assert await reader.fetchval("select count(*) from tasks") == 0
        await queue.submit(type="code")
        assert len(await queue.claim("worker")) == 1


async def test_concurrent_analyze_is_not_waited_for_and_repeated_later(
    postgres_dsn: str, reader: asyncpg.Connection
) -> None:
    async with Queue.open(postgres_dsn) as queue:
        await reader.execute("begin; lock tasks in share update exclusive mode")  # as an analysis has it
        await queue.submit_many([{"type": "code"}] * 1000)
        await reader.execute("rollback")
        await until(partial(is_known, reader))


async def test_analyze_before_the_commit_is_repeated(
    postgres_dsn: str, reader: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees the pages, but considers them empty."""

    async def come_second(connection: asyncpg.Connection, added: Counter[str], schema: str) -> list[str]:
        other = await asyncpg.connect(postgres_dsn)
        try:
            await other.execute("analyze tasks")
        finally:
            other.terminate()  # also where the queue closes meanwhile
        return await tell_planner(connection, added, schema)

    monkeypatch.setattr(store, "tell_planner", come_second)
    async with Queue.open(postgres_dsn) as queue:
        await queue.submit_many([{"type": "code"}] * 1000)
        assert await reader.fetchval(KNOWN) == 1000


async def test_load_continues_when_its_analyze_fails(postgres_dsn: str, reader: asyncpg.Connection) -> None:
    await reader.execute(
        "create function broken(text) returns text immutable language plpgsql as"
        " $$ begin if current_query() like '%analyze%' then raise 'not now'; end if; return $1; end $$"
    )
    await reader.execute("create index idx_broken on tasks (broken(type))")
    async with Queue.open(postgres_dsn) as queue:
        assert len(await queue.submit_many([{"type": "code"}] * 1000)) == 1000
    with pytest.raises(asyncpg.PostgresError, match="not now"):
        await reader.execute("analyze tasks")
    assert await reader.fetchval("select count(*) from tasks") == 1000


async def test_role_without_ownership_does_not_analyze(postgres_dsn: str, reader: asyncpg.Connection) -> None:
    """The server would skip it with a warning in its log, and it would be repeated each second."""
    added = {"tasks": 1000}
    role = f"worker_{postgres_dsn.rpartition('/')[2]}"
    async with Queue.open(postgres_dsn) as queue:
        await queue.submit_many([{"type": "code"}] * 1000)
    await reader.execute("update pg_class set relpages = 0, reltuples = 0 where oid = 'tasks'::regclass")
    await reader.execute(
        f"create role {role}; grant select, insert, update, delete on all tables in schema public to {role}"
    )
    try:
        async with reader.transaction():
            await reader.execute(f"set local role {role}")
            assert await tell_planner(reader, added) == []
            await reader.execute("reset role")
            assert await tell_planner(reader, added) == ["tasks"]
    finally:
        await reader.execute(f"drop owned by {role}; drop role {role}")


async def test_bulk_insert_statements_name_only_tables() -> None:
    """`on conflict do update set` is not a table of the name `set`."""
    known = {table.name for table in tables()} | {
        "migrations",
        "duties",
        "routes",
        "search_entries",
        "search_words",
        "search_marks",
        "count_sums",
        "count_changes",
        "count_marks",
    }
    assert {name: reach_of(name).writes - known for name in statements.load("postgres")} == dict.fromkeys(
        statements.load("postgres"), frozenset()
    )


@pytest.mark.timeout(180)
async def test_three_hundred_awaited_subtasks_are_spawned(postgres_dsn: str) -> None:
    async with Queue.open(postgres_dsn) as queue:
        await queue.submit(type="code")
        (held,) = await queue.claim("worker", start=True)
        assert len(await queue.spawn(held.token, [{"type": "part"}] * 300, wait=True)) == 300


async def test_held_budget_tasks_are_found_by_index(postgres_dsn: str, reader: asyncpg.Connection) -> None:
    """Also where the planner considers the tables empty: it repeated the search for every task."""
    async with Queue.open(postgres_dsn) as queue:
        dag = {"tasks": [{"type": "code", "estimated_cost_usd": 0.10}] * 3, "budget_ceiling_usd": 0.05}
        for _ in range(10):
            await queue.submit_dag(dag)
        for table in ("tasks", "budgets"):
            await reader.execute(f"delete from {table}")
            await reader.execute(f"vacuum (truncate off) {table}")
        for _ in range(30):
            await queue.submit_dag(dag)
    (budget,) = await reader.fetch("select id from budgets limit 1")
    held = Hot("hold_under", {"id": str(budget["id"]), "rest": 0, "count": 500, "now": NOW}, "idx_tasks_budget", 6)
    await prepare(reader, held, "held")
    read = read_of(await explain_prepared(reader, held, "held"), TASKS)
    assert (held.path in read.indexes, read.rows) == (True, held.rows)
