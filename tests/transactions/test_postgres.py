"""Tasks commit or roll back with the caller's rows, on every kind of connection to PostgreSQL."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest

from shiftwork import Client, Queue, SyncQueue
from shiftwork.model.errors import (
    CircularDependency,
    ConnectionUnusable,
    StoreLocked,
    StoreReadOnly,
)
from tests.client.serving import served
from tests.services import Databases
from tests.services.postgres import execute
from tests.services.shared import Pooler
from tests.transactions.drivers import BLOCKING, DRIVERS, Begun

OWN_TABLES = (
    "create table orders (id serial primary key, note text); create table tasks (id int); create table events (id int)"
)


@pytest.fixture
def dsn(postgres_dsn: str) -> str:
    """A database of an application."""
    execute(postgres_dsn, OWN_TABLES)
    return postgres_dsn


@pytest.fixture
async def queue(dsn: str) -> AsyncIterator[Queue]:
    async with Queue.open(f"{dsn}?schema=work_queue") as opened:
        yield opened


@pytest.fixture(params=DRIVERS)
async def begun(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Begun]:
    async with DRIVERS[request.param](dsn) as transaction:
        yield transaction


async def wait_for(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


async def orders(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval("select count(*) from orders"))
    finally:
        await connection.close()


async def submit_all(queue: Queue, connection: Any) -> list[str]:
    """By each of the three methods; with text, numbers and null in every kind of column."""
    odd = {"text": 'ключ "quoted" \\ {a,b} \u2028 \U0001f600', "numbers": [0.1, 2**53, -1e300], "null": None}
    one = await queue.submit(
        type="code",
        payload=odd,
        tags=["a", 'b"c'],
        idempotency_key="once",
        id="own",
        priority=33.25,
        connection=connection,
    )
    many = await queue.submit_many(
        [{"type": "code", "key": f"k{n}", "payload": odd, "tags": [f"t{n}"]} for n in range(12)]
        + [{"type": "docs", "dependencies": ["k0", one.id, "later"]}],
        connection=connection,
    )
    dag = await queue.submit_dag(
        {"title": "whole", "tasks": [{"type": "code", "key": "x"}, {"type": "code", "dependencies": ["x"]}]},
        connection=connection,
    )
    return [each.id for each in (one, *many, *dag)]


async def test_tasks_commit_with_the_callers_rows(queue: Queue, dsn: str, begun: Begun) -> None:
    made = await submit_all(queue, begun.connection)
    assert (await queue.status(fresh=True)).counts == {}
    await wait_for(begun.run("insert into public.orders (note) values ('after')"))
    await wait_for(begun.commit())
    assert await orders(dsn) == 2
    apart = queue.in_workspace("apart")
    plain = await submit_all(apart, None)
    for mine, other in zip(await queue.batch.get(made), await apart.batch.get(plain), strict=True):
        assert (mine.payload, mine.tags, mine.status, mine.priority) == (
            other.payload,
            other.tags,
            other.status,
            other.priority,
        )
    assert [event.verb for event in (await queue.events()).events] == ["submitted"] * len(made)
    await queue.agents.register(id="one", max_concurrent_tasks=50)
    assert len(await queue.claim("one", 50)) == 14


async def test_rolled_back_transaction_leaves_nothing(queue: Queue, dsn: str, begun: Begun) -> None:
    await submit_all(queue, begun.connection)
    await wait_for(begun.rollback())
    assert await orders(dsn) == 0
    assert (await queue.tasks.list()).tasks == []
    assert (await queue.events()).events == []
    again = await queue.submit(type="code", idempotency_key="once", id="own")
    assert not again.duplicate
    assert again.status == "ready"


async def test_refused_submission_leaves_the_transaction_as_it_was(queue: Queue, dsn: str, begun: Begun) -> None:
    with pytest.raises(CircularDependency):
        await queue.submit_many(
            [{"type": "a", "key": "a", "dependencies": ["b"]}, {"type": "a", "key": "b", "dependencies": ["a"]}],
            connection=begun.connection,
        )
    kept = await queue.submit(type="code", connection=begun.connection)
    await wait_for(begun.commit())
    assert await orders(dsn) == 1
    assert [task.id for task in (await queue.tasks.list()).tasks] == [kept.id]


async def test_failed_transaction_is_named(queue: Queue, begun: Begun) -> None:
    with pytest.raises(Exception, match="nowhere"):
        await wait_for(begun.run("select * from nowhere"))
    with pytest.raises(ConnectionUnusable, match=r"has failed.*Roll it back"):
        await queue.submit(type="code", connection=begun.connection)
    await wait_for(begun.rollback())
    assert (await queue.tasks.list()).tasks == []


async def test_connection_to_another_database_is_refused(
    postgres: Databases, queue: Queue, begun: Begun, dsn: str
) -> None:
    name = postgres.create_database()
    try:
        async with Queue.open(postgres.dsn(name)) as elsewhere:
            with pytest.raises(ConnectionUnusable, match="is to the database"):
                await elsewhere.submit(type="code", connection=begun.connection)
            assert (await elsewhere.tasks.list()).tasks == []
    finally:
        postgres.drop_database(name)
    await queue.submit(type="code", connection=begun.connection)
    await wait_for(begun.commit())
    assert await orders(dsn) == 1


async def test_agents_are_woken_by_the_commit(queue: Queue, dsn: str, begun: Begun) -> None:
    """In this process and in others, and not before the commit, when they would find nothing."""
    await queue.agents.register(id="one")
    async with (
        Queue.open(f"{dsn}?schema=work_queue") as other,
        other.engine.store.lane_wakes() as woken,
        queue.engine.store.lane_wakes() as own,
    ):
        await asyncio.wait_for(asyncio.gather(anext(woken), anext(own)), 10)  # they listen
        heard = [asyncio.ensure_future(anext(woken)), asyncio.ensure_future(anext(own))]
        await queue.submit(type="code", connection=begun.connection)
        assert not any(each.done() for each in heard)
        await wait_for(begun.commit())
        assert all(await asyncio.wait_for(asyncio.gather(*heard), 10))


@pytest.mark.parametrize("driver", BLOCKING)
async def test_blocking_queue_joins_a_blocking_transaction(dsn: str, driver: str) -> None:
    async with BLOCKING[driver](dsn) as begun:

        def use() -> None:
            with SyncQueue.open(f"{dsn}?schema=work_queue") as queue:
                task = queue.submit(type="code", connection=begun.connection)
                assert queue.tasks.list().tasks == []
                begun.commit()
                assert queue.get(task.id).status == "ready"

        await asyncio.to_thread(use)


async def test_blocking_queue_refuses_a_connection_of_an_event_loop(dsn: str) -> None:
    async with DRIVERS["asyncpg"](dsn) as begun:

        def use() -> None:
            refused = pytest.raises(ConnectionUnusable, match="another event loop")
            with SyncQueue.open(f"{dsn}?schema=work_queue") as queue, refused:
                queue.submit(type="code", connection=begun.connection)

        await asyncio.to_thread(use)


async def test_connection_without_a_transaction_is_refused(queue: Queue, dsn: str) -> None:
    plain = await asyncpg.connect(dsn)
    committing = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    try:
        for connection in (plain, committing):
            with pytest.raises(ConnectionUnusable, match=r"not in a transaction.*Begin"):
                await queue.submit(type="code", connection=connection)
    finally:
        await plain.close()
        await committing.close()


@pytest.mark.parametrize("connection", [object(), "postgresql://localhost/x", 1])
async def test_other_objects_are_refused(queue: Queue, connection: object) -> None:
    with pytest.raises(ConnectionUnusable, match=r"is not a connection that can be used here.*asyncpg"):
        await queue.submit(type="code", connection=connection)


async def test_read_only_transaction_is_refused(queue: Queue, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction(readonly=True):
            with pytest.raises(StoreReadOnly):
                await queue.submit(type="code", connection=connection)
            assert await connection.fetchval("select 1") == 1
    finally:
        await connection.close()


async def test_stale_snapshot_asks_for_another_transaction(queue: Queue, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("select count(*) from orders")
            await queue.submit(type="code", idempotency_key="once")
            with pytest.raises(StoreLocked, match="run it again"):
                await queue.submit(type="code", idempotency_key="once", connection=connection)
    finally:
        await connection.close()


async def test_duplicate_waits_for_the_callers_transaction(queue: Queue, dsn: str) -> None:
    async with DRIVERS["asyncpg"](dsn) as begun:
        mine = await queue.submit(type="code", idempotency_key="once", connection=begun.connection)
        other = asyncio.ensure_future(queue.submit(type="code", idempotency_key="once"))
        await begun.commit()
        assert (await other).id == mine.id


async def test_queue_in_public_is_found_with_any_search_path(postgres_dsn: str) -> None:
    async with Queue.open(postgres_dsn) as queue:
        connection = await asyncpg.connect(postgres_dsn, server_settings={"search_path": "pg_temp"})
        try:
            async with connection.transaction():
                await connection.execute("create temp table tasks (id int)")
                task = await queue.submit(type="code", connection=connection)
            assert (await queue.get(task.id)).status == "ready"
        finally:
            await connection.close()


async def test_queue_behind_a_pooler_joins_a_direct_connection(dsn: str, pgbouncer: Pooler) -> None:
    name = dsn.rpartition("/")[2]
    async with (
        Queue.open(f"{pgbouncer.dsn(name)}?pgbouncer=true&schema=pooled") as queue,
        DRIVERS["asyncpg"](dsn) as begun,
    ):
        task = await queue.submit(type="code", connection=begun.connection)
        await begun.commit()
        assert (await queue.get(task.id)).status == "ready"


async def test_client_refuses_a_connection(dsn: str) -> None:
    with served(f"{dsn}?schema=work_queue") as server:
        async with Client.open(server.url) as client, DRIVERS["asyncpg"](dsn) as begun:
            for submit in (
                client.submit(type="code", connection=begun.connection),
                client.submit_many([{"type": "code"}], connection=begun.connection),
                client.submit_dag({"tasks": [{"type": "code"}]}, connection=begun.connection),
            ):
                with pytest.raises(ConnectionUnusable, match=r"server cannot take part.*Queue.open"):
                    await submit
