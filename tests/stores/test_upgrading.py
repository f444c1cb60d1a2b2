"""A queue of an older schema is migrated while in use; migrations that would break older programs wait."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model.errors import StoreLocked, StoreNeedsMigration, StoreNewer
from shiftwork.store import migrate, missing_migrations, postgres_migrate
from shiftwork.store.open_store import open_store
from shiftwork.store.postgres_schema import lock_name
from tests.services import Databases
from tests.services.postgres import execute
from tests.stores.test_migrations import CATALOGUE

BEFORE = 40
"""The first migration that the queues of these tests lack."""


@pytest.fixture
def older_dsn(postgres_dsn: str) -> str:
    """A queue on PostgreSQL with an older schema."""
    texts = [migrate.LEDGER]
    for migration in migrate.migrations("postgres"):
        if migration.number < BEFORE:
            texts += [*migrate.statements_of(migration.text), migrate.record(migration)]
    execute(postgres_dsn, ";".join(texts))
    return postgres_dsn


@pytest.fixture(params=["sqlite", "postgres"])
def older_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The same on each store."""
    if request.param == "postgres":
        yield request.getfixturevalue("older_dsn")
        return
    connection = apsw.Connection(f"{tmp_path}/older.db")
    connection.execute(migrate.LEDGER)
    for migration in migrate.migrations("sqlite"):
        if migration.number < BEFORE:
            for statement in (*migrate.statements_of(migration.text), migrate.record(migration)):
                connection.execute(statement)
    connection.close()
    yield f"sqlite:///{tmp_path}/older.db"


async def titles(url: str, *, contract: bool) -> list[str]:
    return [migration.title for migration in (await missing_migrations.look(url, contract=contract)).needed]


CONTRACTS = [migration.title for migration in migrate.sources() if migration.is_contract]


async def test_opening_an_older_queue_leaves_contracts_to_the_operator(older_url: str) -> None:
    await (await Queue.open(older_url)).close()
    assert await titles(older_url, contract=False) == []
    assert await titles(older_url, contract=True) == CONTRACTS
    await (await Queue.open(older_url, migrate=False)).close()
    await (await open_store(older_url, migrate_schema="contract")).close()
    assert await titles(older_url, contract=True) == []


async def test_new_queue_has_every_contract(store_url: str) -> None:
    assert await titles(store_url, contract=True) == []


async def test_events_share_a_row_only_after_the_contract(older_dsn: str) -> None:
    async def rows() -> list[int]:
        connection = await asyncpg.connect(older_dsn)
        try:
            found = await connection.fetch("select coalesce(size, 1) as size from events where verb = 'submitted'")
            return [row["size"] for row in found]
        finally:
            await connection.close()

    async with Queue.open(older_dsn) as queue:
        await queue.submit_many([{"type": "code"}] * 3)
        assert await rows() == [1, 1, 1]
        await (await open_store(older_dsn, migrate_schema="contract")).close()
        await queue.submit_many([{"type": "code"}] * 3)
        assert await rows() == [1, 1, 1, 3]
        assert len((await queue.events(0)).events) == 6


async def test_program_works_while_a_newer_version_adds_columns(postgres_url: str) -> None:
    """Its connections have prepared statements that select every column of these tables."""
    async with Queue.open(postgres_url) as queue:
        await queue.agents.register(id="ada", max_concurrent_tasks=None, budget_remaining_usd=5.0)

        async def work() -> str:
            first = await queue.submit(type="code", estimated_cost_usd=0.1)
            last = await queue.submit(type="code", dependencies=[first.id])
            for _ in range(2):
                (held,) = await queue.claim("ada")
                await queue.start(held.token)
                await queue.complete(held.token, {"done": True})
            return (await queue.get(last.id)).status

        assert await work() == "completed"
        for table in ("tasks", "agents", "dags", "attempts", "budgets"):
            await asyncio.to_thread(execute, postgres_url, f"alter table {table} add column later int")
        assert await work() == "completed"


async def record(url: str, number: int, name: str) -> None:
    """A migration of a later version."""
    text = f"insert into migrations values ({number}, '{name}', 'abc')"
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute(text)
        connection.close()
    else:
        await asyncio.to_thread(execute, url, text)


@pytest.mark.parametrize("name", ["adds_a_column", f"ends_older_needs_{BEFORE:04d}"])
async def test_program_works_on_a_newer_schema_that_it_can_read(store_url: str, name: str) -> None:
    await record(store_url, 9999, name)
    async with Queue.open(store_url) as queue:
        assert (await queue.submit(type="code")).status == "ready"


async def test_program_refuses_a_contract_that_it_does_not_meet(store_url: str) -> None:
    await record(store_url, 9998, "adds_a_column")
    await record(store_url, 9999, "ends_older_needs_9998")
    with pytest.raises(StoreNewer, match="9999_ends_older_needs_9998"):
        await Queue.open(store_url)


async def test_exported_sql_creates_the_schema_that_opening_creates(
    older_dsn: str, postgres: Databases, migrated_template: str
) -> None:
    """Each statement alone where it stands outside of a transaction, as psql sends them."""
    connection = await asyncpg.connect(older_dsn)
    for statement in migrate.statements_of((await missing_migrations.look(older_dsn, contract=True)).script):
        await connection.execute(statement)
    fresh = await asyncpg.connect(postgres.dsn(migrated_template))
    ledger = "select * from migrations order by number"
    assert await connection.fetch(ledger) == await fresh.fetch(ledger)
    assert await connection.fetch(CATALOGUE) == await fresh.fetch(CATALOGUE)
    await connection.close()
    await fresh.close()
    await (await Queue.open(older_dsn, migrate=False)).close()


async def test_exported_sql_of_a_new_queue_creates_it(tmp_path: Path, postgres_dsn: str) -> None:
    for url in (f"sqlite:///{tmp_path}/new.db", f"{postgres_dsn}?schema=sales"):
        script = (await missing_migrations.look(url)).script
        if url.startswith("sqlite"):
            apsw.Connection(f"{tmp_path}/new.db").execute(script)
        else:
            execute(postgres_dsn, script)
        assert (await missing_migrations.look(url, contract=True)).script == ""
        async with Queue.open(url, migrate=False) as queue:
            assert (await queue.submit(type="code")).status == "ready"


async def test_migration_waits_for_a_lock_without_blocking_others(older_dsn: str) -> None:
    """It gives up its place in the line, so that a call that came after it is done before the lock is free."""
    holder = await asyncpg.connect(older_dsn)
    held = holder.transaction()
    await held.start()
    await holder.execute("lock table events in row exclusive mode")
    opening = asyncio.ensure_future(Queue.open(older_dsn))
    other = await asyncpg.connect(older_dsn)
    await until_waiting(other)
    await other.execute("insert into events (at, workspace, verb, actor) values (0, 'default', 'message', 'a')")
    assert not opening.done()
    await held.commit()
    async with await opening as queue:
        assert (await queue.submit(type="code")).status == "ready"
    await holder.close()
    await other.close()


WAITS_FOR_A_LOCK = "wait_event_type = 'Lock'"
TRIED_AND_ENDED_ITS_TRANSACTION = "state = 'idle' and query = 'COMMIT;'"


async def until_waiting(connection: asyncpg.Connection, how: str = WAITS_FOR_A_LOCK) -> None:
    upgrading = "datname = current_database() and application_name = 'shiftwork migrate'"
    waiting = f"select 1 from pg_stat_activity where {upgrading} and {how}"
    async with asyncio.timeout(30):
        while not await connection.fetchval(waiting):  # noqa: ASYNC110  # the database has no event for it
            await asyncio.sleep(0.005)


async def test_migration_that_never_gets_its_locks_says_so(older_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_migrate, "LOCKS_SEC", 0.0)
    holder = await asyncpg.connect(older_dsn)
    async with holder.transaction():
        await holder.execute("lock table events in row exclusive mode")
        with pytest.raises(StoreLocked, match=r"0040_event_batches.*did not get its locks"):
            await Queue.open(older_dsn)
    await holder.close()
    await (await Queue.open(older_dsn)).close()


async def test_index_left_unfinished_is_built_when_the_queue_is_opened(older_dsn: str) -> None:
    """A process that is killed while it builds an index leaves it like this."""
    connection = await asyncpg.connect(older_dsn)
    blocker = await asyncpg.connect(older_dsn)
    held = blocker.transaction()
    await held.start()
    await blocker.execute("insert into tombstones values (gen_random_uuid(), 'w', 0, 'a', 'r')")
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "shiftwork", "--store", older_dsn, "migrate"], stdout=subprocess.DEVNULL
    )
    await until_waiting(connection)  # the index of tombstones waits for all who write there
    process.kill()
    await process.wait()
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'shiftwork migrate'"
    )
    await held.rollback()
    unfinished = "select number from migrations where checksum = $1"
    assert [row["number"] for row in await connection.fetch(unfinished, migrate.UNFINISHED)] == [48]
    with pytest.raises(StoreNeedsMigration):
        await Queue.open(older_dsn, migrate=False)
    await (await Queue.open(older_dsn)).close()
    assert await connection.fetch(unfinished, migrate.UNFINISHED) == []
    assert await connection.fetch("select 1 from pg_index where not indisvalid") == []
    assert await connection.fetchval("select to_regclass('idx_tombstones_age')") is not None
    await connection.close()
    await blocker.close()


async def test_concurrent_upgrades_of_one_queue_end_in_one(older_url: str) -> None:
    queues = await asyncio.gather(*(Queue.open(older_url) for _ in range(4)))
    for queue in queues:
        await queue.submit(type="code")
        await queue.close()
    assert await titles(older_url, contract=False) == []


async def test_process_waiting_for_an_upgrade_keeps_no_transaction_open(older_dsn: str) -> None:
    """The other one builds an index concurrently, which waits for the end of older transactions."""
    other = await asyncpg.connect(older_dsn)
    lock = lock_name("public", postgres_migrate.MIGRATION_LOCK)
    await other.execute(f"select pg_advisory_lock(hashtextextended('{lock}', 0))")
    opening = asyncio.ensure_future(Queue.open(older_dsn))
    await until_waiting(other, TRIED_AND_ENDED_ITS_TRANSACTION)
    assert not opening.done()
    await other.close()
    await (await opening).close()
    assert await titles(older_dsn, contract=False) == []


def shiftwork(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shiftwork", "--store", url, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_command_shows_an_upgrade_before_it_makes_it(older_url: str) -> None:
    shown = shiftwork(older_url, "migrate", "--dry-run")
    assert "0040_event_batches" in shown.stdout
    assert CONTRACTS[0] not in shown.stdout
    assert CONTRACTS[0] in shiftwork(older_url, "migrate", "--dry-run", "--contract").stdout
    assert "insert into migrations" in shiftwork(older_url, "migrate", "--sql").stdout
    assert shiftwork(older_url, "migrate", "--check").returncode == 1
    assert "shiftwork migrate --contract" in shiftwork(older_url, "migrate").stdout
    assert shiftwork(older_url, "migrate", "--check").returncode == 0
    assert shiftwork(older_url, "migrate", "--check", "--contract").returncode == 1
    assert "shiftwork migrate --contract" in shiftwork(older_url, "doctor").stdout
    ended = shiftwork(older_url, "migrate", "--contract")
    assert ended.returncode == 0
    assert "--contract" not in ended.stdout
    assert shiftwork(older_url, "migrate", "--sql", "--contract").stdout == ""
    assert shiftwork(older_url, "migrate", "--sql", "--check").returncode == 2
