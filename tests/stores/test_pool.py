"""Connections stay borrowed between calls that end well, and no caller waits for one that is idle."""

import asyncio

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.store.postgres import PostgresStore
from shiftwork.store.store import Tx
from tests.worker.steps import until


def connections(queue: Queue) -> list[object]:
    assert isinstance(queue.engine.store, PostgresStore)
    return queue.engine.store._connections._spare


async def test_next_call_uses_the_same_connection(postgres_url: str) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")
        (kept,) = connections(queue)
        await queue.submit(type="code")
        assert connections(queue) == [kept]


async def test_connection_of_a_failed_call_goes_back_to_the_pool(postgres_url: str) -> None:
    async def fail(tx: Tx) -> None:
        await tx.all("read_workspace", name="default")
        raise ValueError("of the verb")

    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")
        with pytest.raises(ValueError, match="of the verb"):
            await queue.engine.store.run(fail)
        assert connections(queue) == []
        await queue.submit(type="code")


async def test_callers_share_fewer_connections(postgres_url: str) -> None:
    async with Queue.open(postgres_url, pool_size=2) as queue:
        made = await queue.submit(type="code")
        for _ in range(3):
            found = await asyncio.gather(*(queue.get(made.id) for _ in range(20)))
            assert {task.id for task in found} == {made.id}


async def test_connection_that_ended_while_idle_is_not_used(postgres_url: str) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")
        (kept,) = connections(queue)
        other = await asyncpg.connect(postgres_url)
        await other.execute("select pg_terminate_backend($1)", kept.get_server_pid())  # type: ignore[attr-defined]  # of the driver
        await until(lambda: kept._con is None)  # type: ignore[attr-defined]  # the same
        await other.close()
        await queue.submit(type="code")
        assert (await queue.status()).counts == {"ready": 2}


async def test_replaced_connections_are_closed(postgres_url: str) -> None:
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")
        (kept,) = connections(queue)
        await queue.engine.store._connections.replace_all()  # type: ignore[attr-defined]  # of this store
        await queue.submit(type="code")
        (fresh,) = connections(queue)
        assert fresh is not kept
        assert kept._con is None  # type: ignore[attr-defined]  # of the driver
