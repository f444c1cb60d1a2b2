"""`?schema=name`: all objects of a queue are in it, and two queues in one database are independent."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, StoreNeedsMigration, StoreReadOnly, StoreUnavailable, StoreUnsuitable
from shiftwork.snapshots.copy import checksum, copy, restore, save
from shiftwork.store import postgres_schema, statements
from shiftwork.testing import MovedClock
from tests.copying.filling import fill
from tests.schema.conftest import OWN_TABLES, SCHEMA
from tests.services import Databases
from tests.services.postgres import execute
from tests.services.shared import Pooler

OBJECTS = """
select n.nspname as schema, c.relkind::text as kind, c.relname as name from pg_class c
join pg_namespace n on n.oid = c.relnamespace where n.nspname !~ '^(pg_|information_schema)'
union all
select n.nspname, 'f', p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname !~ '^(pg_|information_schema)'
union all select nspname, 'n', nspname from pg_namespace where nspname !~ '^(pg_|information_schema)'"""


async def objects(dsn: str) -> dict[str, set[tuple[str, str]]]:
    connection = await asyncpg.connect(dsn)
    try:
        found: dict[str, set[tuple[str, str]]] = {}
        for row in await connection.fetch(OBJECTS):
            found.setdefault(row["schema"], set()).add((row["kind"], row["name"]))
        return found
    finally:
        await connection.close()


async def test_every_object_is_in_the_schema(postgres_dsn: str) -> None:
    execute(postgres_dsn, OWN_TABLES)
    before = await objects(postgres_dsn)
    async with Queue.open(f"{postgres_dsn}?schema=sales") as queue:
        await queue.submit(type="code")
    after = await objects(postgres_dsn)
    assert after.keys() - before.keys() == {"sales"}
    assert after["public"] == before["public"]
    assert postgres_schema.relations() <= {name for _, name in after["sales"]}
    assert ("v", "factory_tasks") in after["sales"]


async def test_every_statement_names_the_schema(schema_url: str, application_dsn: str) -> None:
    """Statements are prepared with a search path that finds only the application's tables, which would not match."""
    connection = await asyncpg.connect(application_dsn, server_settings={"search_path": ""})
    try:
        for statement in postgres_schema.load(SCHEMA).values():
            await connection.prepare(statement.text)
            if statement.single:
                await connection.prepare(statement.single)
    finally:
        await connection.close()


def test_no_subquery_has_the_name_of_a_table() -> None:
    """Otherwise, it would be mistaken for the table."""
    for name, statement in statements.load("postgres").items():
        parts = set(postgres_schema.PARTS.findall(statement.text))
        assert not parts & postgres_schema.relations(), name


@pytest.mark.parametrize("name", ["", "Sales", "a b", 'a"b', "1st", "ü", "pg_sales", "information_schema", "x" * 49])
async def test_bad_schema_name_is_refused(postgres_dsn: str, name: str) -> None:
    with pytest.raises(InputError, match="schema"):
        await Queue.open(f"{postgres_dsn}?schema={quote(name)}")
    assert (await objects(postgres_dsn)).keys() == {"public"}


@pytest.mark.parametrize("name", ["user", "x" * 48, "_1"])
async def test_odd_schema_name_works(postgres_dsn: str, name: str) -> None:
    async with Queue.open(f"{postgres_dsn}?schema={name}") as queue:
        task = await queue.submit(type="code")
        assert (await queue.get(task.id)).status == "ready"


async def test_missing_schema_is_not_created_without_permission(postgres_dsn: str) -> None:
    with pytest.raises(StoreNeedsMigration):
        await Queue.open(f"{postgres_dsn}?schema=sales", migrate=False)
    assert (await objects(postgres_dsn)).keys() == {"public"}


async def test_role_that_may_not_create_the_schema_gets_a_hint(postgres: Databases, postgres_dsn: str) -> None:
    execute(postgres_dsn, "drop role if exists clerk; create role clerk login")
    try:
        clerk = Databases(postgres.host, postgres.port, "clerk").dsn(postgres_dsn.rpartition("/")[2])
        with pytest.raises(StoreReadOnly, match=r"no schema 'sales'.*create schema sales authorization"):
            await Queue.open(f"{clerk}?schema=sales")
        execute(postgres_dsn, "create schema sales authorization clerk")
        async with Queue.open(f"{clerk}?schema=sales") as queue:
            assert (await queue.submit(type="code")).status == "ready"
    finally:
        execute(postgres_dsn, "drop owned by clerk cascade; drop role clerk")


@pytest.mark.parametrize("own", ["create table migrations (id int)", "create table tasks (id int)"])
async def test_tables_of_another_program_are_left_alone(postgres_dsn: str, own: str) -> None:
    execute(postgres_dsn, own)
    before = await objects(postgres_dsn)
    with pytest.raises(StoreUnsuitable, match=r"another program.*schema=shiftwork"):
        await Queue.open(postgres_dsn)
    assert await objects(postgres_dsn) == before


async def test_role_without_a_search_path_gets_a_hint_to_name_the_schema(postgres_dsn: str) -> None:
    with pytest.raises(StoreUnsuitable, match="search path"):
        await Queue.open(f"{postgres_dsn}?options=-csearch_path%3Dnowhere")


async def test_queue_is_found_by_its_name_or_by_the_search_path(schema_url: str, application_dsn: str) -> None:
    """The same queue, so it wakes the same agents and takes the same locks."""
    by_path = f"{application_dsn}?options=-csearch_path%3D{SCHEMA}"
    async with Queue.open(schema_url) as one, Queue.open(by_path) as other:
        task = await one.submit(type="code")
        assert (await other.get(task.id)).status == "ready"
        assert one.engine.store._notices.ready_channel == other.engine.store._notices.ready_channel  # type: ignore[attr-defined]  # of this store


async def test_queues_in_two_schemas_do_not_disturb_each_other(postgres_dsn: str, clock: MovedClock) -> None:
    async with (
        Queue.open(f"{postgres_dsn}?schema=north", clock=clock) as north,
        Queue.open(f"{postgres_dsn}?schema=south", clock=clock) as south,
    ):
        await north.agents.register(id="one")
        await south.agents.register(id="one")
        task = await north.submit(type="code", id="same", idempotency_key="key")
        assert (await south.status()).depth["total"] == 0
        assert (await south.submit(type="code", id="same", idempotency_key="key")).id != task.id
        async with south.engine.store.lane_wakes() as woken, north.engine.store.lane_wakes() as own:
            heard = asyncio.ensure_future(anext(woken))
            await anext(own)  # it listens
            await asyncio.wait_for(heard, 10)  # likewise
            heard = asyncio.ensure_future(anext(woken))
            async with Queue.open(f"{postgres_dsn}?schema=north", clock=clock) as third:
                await third.submit(type="code")
                await asyncio.wait_for(anext(own), 10)
            async with Queue.open(f"{postgres_dsn}?schema=south", clock=clock) as third:
                assert not heard.done()
                await third.submit(type="code")
                await asyncio.wait_for(heard, 10)
        await north.control.pause()
        assert [each.id for each in await south.claim("one")]
        assert await north.claim("one") == []


async def test_locks_of_two_queues_are_independent(postgres_dsn: str) -> None:
    async with (
        Queue.open(f"{postgres_dsn}?schema=north") as north,
        Queue.open(f"{postgres_dsn}?schema=south") as south,
    ):

        async def nested(tx: object) -> str:
            await tx.advisory_lock("turn")  # type: ignore[attr-defined]  # a transaction
            return await south.engine.store.run(_lock)

        assert await asyncio.wait_for(north.engine.store.run(nested), 10) == "locked"


async def _lock(tx: object) -> str:
    await tx.advisory_lock("turn")  # type: ignore[attr-defined]  # a transaction
    return "locked"


async def test_application_keeps_its_rows(queue: Queue, clock: MovedClock, application_dsn: str) -> None:
    await fill(queue, clock)
    connection = await asyncpg.connect(application_dsn)
    try:
        for table in ("tasks", "events", "agents"):
            assert [tuple(row) for row in await connection.fetch(f"select * from {table}")] == [(1, "mine")]
    finally:
        await connection.close()


async def test_queue_is_copied_into_a_schema_and_out_of_it(
    queue: Queue, clock: MovedClock, application_dsn: str, tmp_path: Path
) -> None:
    await fill(queue, clock)
    copied = await copy(queue.url, f"{application_dsn}?schema=second", verify=True)
    assert await checksum(f"{application_dsn}?schema=second") == copied
    assert await copy(f"{application_dsn}?schema=second", f"sqlite:///{tmp_path}/third.db") == copied
    await save(queue.url, tmp_path / "all.snapshot", clock())
    assert await restore(tmp_path / "all.snapshot", f"{application_dsn}?schema=third") == copied
    async with Queue.open(f"{application_dsn}?schema=third", clock=clock) as third:
        await third.submit(type="code")  # its numbers continue


async def test_schema_works_behind_a_pooler(pgbouncer: Pooler, application_dsn: str) -> None:
    name = application_dsn.rpartition("/")[2]
    url = f"{pgbouncer.dsn(name)}?pgbouncer=true&schema=pooled"
    before = await objects(application_dsn)
    async with Queue.open(url, pool_size=4) as queue:
        await queue.agents.register(id="one", max_concurrent_tasks=50)
        made = await asyncio.gather(*(queue.submit(type="code", priority=number) for number in range(20)))
        await queue.submit_many([{"type": "code"}] * 30)
        taken = await queue.claim("one", 50, start=True)
        assert {task.id for task in made} < {each.id for each in taken}
        await asyncio.gather(*(queue.complete(each.token) for each in taken))
    after = await objects(application_dsn)
    assert {name: after[name] for name in before} == before


async def test_misspelt_database_is_not_retried(postgres: Databases) -> None:
    with pytest.raises(StoreUnavailable, match=r'"nope" does not exist.*Check the name of the database') as refused:
        await Queue.open(postgres.dsn("nope"))
    assert "try again" not in str(refused.value)


async def test_unknown_user_gets_a_hint_to_check_the_address(postgres: Databases) -> None:
    stranger = Databases(postgres.host, postgres.port, "stranger")
    with pytest.raises(StoreUnavailable, match=r'"stranger" does not exist.*Check the user'):
        await Queue.open(stranger.dsn())


async def test_reading_commands_do_not_create_a_queue(postgres_dsn: str) -> None:
    with pytest.raises(StoreNeedsMigration, match=r"no queue in this database yet.*shiftwork migrate"):
        await Queue.open(postgres_dsn, migrate=False)
    assert (await objects(postgres_dsn))["public"] == {("n", "public")}


def test_commands_work_on_a_schema(schema_url: str, tmp_path: Path) -> None:
    """Run every command that queries the database directly."""
    known = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SHIFTWORK_STORE": schema_url}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "shiftwork", *words]
        done = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("migrate", "--check")
    run("submit", "code")
    assert "code" in run("list")
    assert "all are present" in run("doctor")
    copied = f"{schema_url.partition('?')[0]}?schema=copied"
    run("copy", schema_url, copied)
    assert "code" in run("--store", copied, "list")


@pytest.mark.timeout(180)
async def test_prove_finds_no_loss_in_a_schema(postgres_dsn: str, tmp_path: Path) -> None:
    execute(postgres_dsn, OWN_TABLES)
    url = f"{postgres_dsn}?schema=proven"
    command = [sys.executable, "-m", "shiftwork", "--store", url, "prove", "--minutes", "0.1", "--workers", "2"]
    command += ["--faults", "kill"]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr
