"""Ends whose events are committed after later ones are counted all the same. PostgreSQL: SQLite commits in order."""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model.ids import parse
from shiftwork.observe import kept_counts
from tests.races.fleet import handles
from tests.worker.steps import until

LOCK = 4712
STOPPED = "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


class Slow:
    """Stops the transaction that ends one task at its commit: it has written its events."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def stop_commit_of(self, task_id: str) -> None:
        await self._connection.execute(
            "create function hold() returns trigger language plpgsql as"
            f" 'begin perform pg_advisory_xact_lock({LOCK}); return null; end';"
            "create constraint trigger held after update on tasks deferrable initially deferred"
            f" for each row when (new.id = '{parse(task_id)}' and new.status = 'completed') execute function hold();"
            f"select pg_advisory_lock({LOCK})"
        )

    async def is_stopped(self) -> bool:
        return await self._connection.fetchval(STOPPED) is not None

    async def end(self, how: Literal["commit", "rollback"]) -> None:
        if how == "rollback":
            await self._connection.execute("select pg_terminate_backend($1)", await self._connection.fetchval(STOPPED))
        await self._connection.execute(f"select pg_advisory_unlock({LOCK})")


@pytest.fixture
async def slow(postgres_url: str) -> AsyncIterator[Slow]:
    connection = await asyncpg.connect(postgres_url)
    yield Slow(connection)
    await connection.execute("drop function if exists hold() cascade")
    await connection.close()


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_end_with_a_lower_number_that_is_not_committed_is_counted_later(
    postgres_url: str, slow: Slow, monkeypatch: pytest.MonkeyPatch, how: Literal["commit", "rollback"], *, begun: bool
) -> None:
    """Whether counting had begun before, or begins at this moment."""
    async with handles(postgres_url, 2) as (queue, other):
        store = queue.engine.store
        if begun:
            await kept_counts.advance(store)
            await kept_counts.make_whole(store)
        await queue.agents.register(id="ada", max_concurrent_tasks=2)
        await queue.submit_many([{"type": "code"}] * 2)
        early, late = await queue.claim("ada", 2, start=True)
        await slow.stop_commit_of(early.id)
        completing = asyncio.create_task(other.complete(early.token))
        await until(slow.is_stopped)
        await queue.complete(late.token)  # a higher number, and committed

        settling, settle = asyncio.Event(), store.settle_events

        async def noted() -> None:
            settling.set()
            await settle()

        monkeypatch.setattr(store, "settle_events", noted)
        counting = asyncio.create_task(kept_counts.advance(store))
        await settling.wait()
        assert await store.read(kept_counts.difference) == (await _mark(queue), {})
        assert (await queue.status(fresh=True)).counts == {"running": 1, "completed": 1}
        await slow.end(how)
        await asyncio.gather(completing, return_exceptions=True)
        await counting
        await kept_counts.make_whole(store)
        last = await store.read(lambda tx: tx.one("last_event"))
        assert last is not None
        ended = 2 if how == "commit" else 1
        mark = await _mark(queue)
        assert (mark.read_to, mark.whole) == (last["seq"], True)
        assert (await store.read(kept_counts.difference))[1] == {}
        assert (await queue.status(fresh=True)).counts.get("completed") == ended
        kept = await store.read(lambda tx: tx.all("read_count_sums", workspace="default"))
        assert [(row["status"], row["total"]) for row in kept] == [("completed", ended)]


async def _mark(queue: Queue) -> kept_counts.Mark:
    mark = await queue.engine.store.read(kept_counts.read_mark)
    return mark or kept_counts.Mark(0, whole=False, generation=0)
