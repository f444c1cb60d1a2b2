"""Several handles on one queue, and a way to stop one of them in the middle of its transaction."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from shiftwork import Queue
from shiftwork.engine.assignment import Assignment
from shiftwork.store.store import Row, Rows, Tx, Verb

T = TypeVar("T")
BLOCKED = """
select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"""


@asynccontextmanager
async def handles(url: str, count: int, **options: Any) -> AsyncIterator[list[Queue]]:
    """Open this many queues on one store, each with its own connections and memory."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await Queue.open(url, **options)) for _ in range(count)]


async def together(*calls: Awaitable[T]) -> list[T]:
    """Run all concurrently; the first error ends the test."""
    return list(await asyncio.gather(*calls))


async def errors(*calls: Awaitable[Any]) -> list[str]:
    """Run all concurrently; return the codes of those that were refused."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    unexpected = [a for a in answers if isinstance(a, BaseException) and not hasattr(a, "code")]
    if unexpected:
        raise unexpected[0]
    return [answer.code for answer in answers if isinstance(answer, BaseException)]  # type: ignore[attr-defined]  # ours all have a code


async def hire(queue: Queue, *agents: str, most: int | None = None) -> None:
    """Register agents with this many slots, or without a limit."""
    for agent in agents:
        await queue.agents.register(id=agent, max_concurrent_tasks=most)


async def take_all(queue: Queue, agent: str, count: int) -> list[Assignment]:
    """Claim and start this many tasks for one agent."""
    await hire(queue, agent)
    taken = await queue.claim(agent, count, start=True)
    assert len(taken) == count
    return taken


async def stranded(queue: Queue) -> list[Row]:
    """Return tasks with a wrong count of open dependencies, or that wait without a reason."""
    rows = await queue.engine.store.read(lambda tx: tx.all("stranded", count=100))
    return [dict(row) for row in rows]


async def until_blocked(queue: Queue) -> None:
    """Wait until a transaction of this database waits for a lock."""
    connection = await asyncpg.connect(queue.url)
    try:
        async with asyncio.timeout(30):
            while not await connection.fetchval(BLOCKED):  # noqa: ASYNC110 -- the database has no event for it
                await asyncio.sleep(0.005)
    finally:
        await connection.close()


class Stop:
    """Makes the next transaction that reaches a statement wait before it, holding its locks, until `resume`."""

    def __init__(self, queue: Queue, statement: str) -> None:
        self._reached = asyncio.Event()
        self._resumed = asyncio.Event()
        self._statement = statement
        self._run = queue.engine.store.run
        setattr(queue.engine.store, "run", self._stop)  # noqa: B010 -- a method is replaced on purpose

    async def wait(self) -> None:
        """Wait until the transaction has reached the statement."""
        await asyncio.wait_for(self._reached.wait(), 20)

    async def _stop(self, verb: Verb[T], /) -> T:
        return await self._run(lambda tx: verb(_StoppingTx(tx, self)))

    async def before(self, statement: str) -> None:
        if statement == self._statement and not self._reached.is_set():
            self._reached.set()
            await self._resumed.wait()

    def resume(self) -> None:
        self._resumed.set()


class _StoppingTx:
    """A real transaction that asks before each statement. For PostgreSQL: on SQLite a verb cannot wait."""

    def __init__(self, tx: Tx, stop: Stop) -> None:
        self._tx = tx
        self._stop = stop
        self.now = tx.now

    async def all(self, name: str, /, **parameters: Any) -> Sequence[Row]:
        await self._stop.before(name)
        return await self._tx.all(name, **parameters)

    async def alone(self, name: str, /, **parameters: Any) -> None:
        """Never run as a single statement, since a test cannot stop in the middle of one."""

    def stay_open(self) -> None: ...

    async def one(self, name: str, /, **parameters: Any) -> Row | None:
        await self._stop.before(name)
        return await self._tx.one(name, **parameters)

    async def run(self, name: str, /, **parameters: Any) -> None:
        await self._stop.before(name)
        await self._tx.run(name, **parameters)

    async def insert(self, name: str, rows: Rows, /) -> None:
        await self._stop.before(name)
        await self._tx.insert(name, rows)

    async def advisory_lock(self, name: str, /) -> None:
        await self._tx.advisory_lock(name)

    def wake(self, lane: int, /) -> None:
        self._tx.wake(lane)

    def announce_end(self, *ended: str, to_others: bool = True) -> None:
        self._tx.announce_end(*ended, to_others=to_others)
