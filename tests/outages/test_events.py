"""A reader of events misses none and repeats none, although numbers are not in commit order."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.store.store import Tx
from tests.races.fleet import handles, together
from tests.services import Databases


@pytest.fixture
def two_urls(postgres: Databases, migrated_template: str) -> Iterator[tuple[str, str]]:
    """Two queues in two databases of one server."""
    names = [postgres.create_database(migrated_template) for _ in range(2)]
    yield postgres.dsn(names[0]), postgres.dsn(names[1])
    for name in names:
        postgres.drop_database(name)


@asynccontextmanager
async def open_transaction(url: str) -> AsyncIterator[None]:
    """A transaction that has written something and stays open."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("insert into tombstones values (gen_random_uuid(), 'x', 0, 'x', 'x')")
    yield
    await transaction.rollback()
    await connection.close()


class Undone(Exception):
    """The writer gives up."""


def event(number: int) -> tuple[object, ...]:
    return (0.0, "default", None, None, "counted", None, "test", None, number, None, None)


async def dawdle(number: int, delay: float, tx: Tx, *, gives_up: bool) -> None:
    await tx.insert("insert_events", [event(number)])
    await tx.one("last_event")  # an insert is written with whatever comes next
    await asyncio.sleep(delay)
    if gives_up:
        raise Undone


async def test_reader_sees_each_event_once_despite_slow_and_rolled_back_writers(two_urls: tuple[str, str]) -> None:
    """Eight writers that pause between their number and their commit, some of which roll back."""
    url, foreign = two_urls
    chance = random.Random(7)
    written: set[int] = set()

    async def write(queue: Queue, first: int) -> None:
        for number in range(first, first + 60):
            delay = chance.choice([0, 0, 0.001, 0.005])
            gives_up = chance.random() < 0.2

            try:
                await queue.engine.store.run(partial(dawdle, number, delay, gives_up=gives_up))
                written.add(number)
            except Undone:
                continue

    async def read(queue: Queue, writers: asyncio.Future[list[None]]) -> list[int | None]:
        seen: list[int | None] = []
        after = 0
        while True:
            ended = writers.done()
            news = await queue.events(after, limit=50)
            events, after = news.events, news.next
            seen += [e.fence for e in events if e.verb == "counted"]
            if ended and not events:
                return seen

    async with handles(url, 5, pool_size=4) as queues, open_transaction(foreign):
        writers = asyncio.ensure_future(together(*(write(queues[i % 4], i * 1000) for i in range(8))))
        first, second = await together(read(queues[4], writers), read(queues[3], writers))
        await writers
        assert len(written) > 300
        assert sorted(n or 0 for n in first) == sorted(written)
        assert sorted(n or 0 for n in second) == sorted(written)


async def test_reader_waits_only_for_the_writer_of_the_gap(two_urls: tuple[str, str]) -> None:
    url, foreign = two_urls
    async with handles(url, 2) as (reader, writer), open_transaction(foreign):
        has_number, may_commit = asyncio.Event(), asyncio.Event()

        async def slow(tx: Tx) -> None:
            await tx.insert("insert_events", [event(1)])
            await tx.one("last_event")
            has_number.set()
            await may_commit.wait()

        async def quick(tx: Tx) -> None:
            await tx.insert("insert_events", [event(2)])

        writing = asyncio.create_task(writer.engine.store.run(slow))
        await has_number.wait()
        await reader.engine.store.run(quick)
        reading = asyncio.create_task(reader.events())
        done, _ = await asyncio.wait([reading], timeout=0.1)
        assert not done
        may_commit.set()
        await writing
        events = (await asyncio.wait_for(reading, 20)).events
        assert [e.fence for e in events if e.verb == "counted"] == [1, 2]


async def test_reader_continuing_from_its_cursor_sees_every_event_once(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 25)
    seen, after = [], 0
    while True:
        news = await queue.events(after, limit=7)
        page, after = news.events, news.next
        if not page:
            break
        seen += [e.task_id for e in page]
    assert len(seen) == len(set(seen)) == 25
