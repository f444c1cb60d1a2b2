"""Tasks commit or roll back with the caller's rows in the file of a queue on SQLite."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from shiftwork import Queue, SyncQueue, Worker
from shiftwork.model.errors import CircularDependency, ConnectionUnusable


@pytest.fixture
async def queue(sqlite_url: str) -> AsyncIterator[Queue]:
    async with Queue.open(sqlite_url) as opened:
        yield opened


@pytest.fixture
def connection(sqlite_url: str, queue: Queue) -> Iterator[apsw.Connection]:
    """A connection of the application, which has its own table in the file."""
    with closing(apsw.Connection(sqlite_url.removeprefix("sqlite:///"))) as opened:
        opened.execute("create table orders (note text)")
        opened.row_trace = lambda cursor, row: dict(zip([c[0] for c in cursor.description], row, strict=True))
        opened.execute("begin immediate")
        opened.execute("insert into orders values ('mine')")
        yield opened


async def submit_all(queue: Queue, connection: apsw.Connection) -> list[str]:
    one = await queue.submit(type="code", idempotency_key="once", id="own", tags=["a"], connection=connection)
    many = await queue.submit_many(
        [{"type": "code", "key": "k"}, {"type": "docs", "dependencies": ["k", one.id]}], connection=connection
    )
    dag = await queue.submit_dag({"tasks": [{"type": "a"}, {"type": "b"}]}, connection=connection)
    return [each.id for each in (one, *many, *dag)]


async def test_tasks_commit_with_the_callers_rows(queue: Queue, connection: apsw.Connection) -> None:
    made = await submit_all(queue, connection)
    assert (await queue.tasks.list()).tasks == []
    connection.execute("commit")
    assert [task.id for task in (await queue.tasks.list()).tasks] == made
    assert list(connection.execute("select note from orders")) == [{"note": "mine"}]


async def test_rolled_back_transaction_leaves_nothing(queue: Queue, connection: apsw.Connection) -> None:
    await submit_all(queue, connection)
    connection.execute("rollback")
    assert (await queue.tasks.list()).tasks == []
    assert list(connection.execute("select note from orders")) == []
    again = await queue.submit(type="code", idempotency_key="once", id="own")
    assert again.status == "ready"
    assert not again.duplicate


async def test_refused_submission_leaves_the_transaction_as_it_was(queue: Queue, connection: apsw.Connection) -> None:
    with pytest.raises(CircularDependency):
        await queue.submit_many(
            [{"type": "a", "key": "a", "dependencies": ["b"]}, {"type": "a", "key": "b", "dependencies": ["a"]}],
            connection=connection,
        )
    kept = await queue.submit(type="code", connection=connection)
    connection.execute("commit")
    assert [task.id for task in (await queue.tasks.list()).tasks] == [kept.id]


async def test_agents_are_woken_by_the_commit(queue: Queue, connection: apsw.Connection, sqlite_url: str) -> None:
    async with (
        Queue.open(sqlite_url) as other,
        other.engine.store.lane_wakes() as woken,
        queue.engine.store.lane_wakes() as own,
    ):
        heard = [asyncio.ensure_future(anext(woken)), asyncio.ensure_future(anext(own))]
        await queue.submit(type="code", connection=connection)
        assert not any(each.done() for each in heard)
        connection.execute("commit")
        await asyncio.wait_for(asyncio.gather(*heard), 10)


async def test_later_transaction_wakes_no_one(queue: Queue, connection: apsw.Connection) -> None:
    await queue.submit(type="code", connection=connection)
    connection.execute("rollback")
    async with queue.engine.store.lane_wakes() as own:
        heard = asyncio.ensure_future(anext(own))
        connection.execute("insert into orders values ('other')")
        await queue.agents.register(id="one")  # what the commit might have queued is done by now
        assert not heard.done()
        heard.cancel()


async def test_blocking_queue_joins_a_transaction(sqlite_url: str, connection: apsw.Connection) -> None:
    def use() -> None:
        with SyncQueue.open(sqlite_url) as queue:
            task = queue.submit(type="code", connection=connection)
            connection.execute("commit")
            assert queue.get(task.id).status == "ready"

    await asyncio.to_thread(use)


async def test_typed_task_joins_a_transaction(queue: Queue, connection: apsw.Connection) -> None:
    worker = Worker()

    @worker.task
    async def ship(order: int) -> int:
        return order

    task = await queue.submit(ship.new(order=7), connection=connection)
    connection.execute("commit")
    assert (await queue.get(task.id)).payload == {"order": 7}


async def test_connection_without_a_transaction_is_refused(queue: Queue, connection: apsw.Connection) -> None:
    connection.execute("commit")
    with pytest.raises(ConnectionUnusable, match=r"not in a transaction.*begin immediate"):
        await queue.submit(type="code", connection=connection)


async def test_connection_to_another_file_is_refused(queue: Queue, tmp_path: Path) -> None:
    for name in (str(tmp_path / "other.db"), ":memory:"):
        with closing(apsw.Connection(name)) as other:
            other.execute("begin")
            with pytest.raises(ConnectionUnusable, match="the queue is in"):
                await queue.submit(type="code", connection=other)


async def test_another_copy_of_the_engine_is_refused(queue: Queue, tmp_path: Path) -> None:
    wanted = r"sqlite3.Connection cannot be used.*apsw"
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, pytest.raises(ConnectionUnusable, match=wanted):
        await queue.submit(type="code", connection=other)
