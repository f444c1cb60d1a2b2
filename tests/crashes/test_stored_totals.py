"""The ledger of `shiftwork prove` reads all totals in one snapshot: concurrent reports are not misbookings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

from shiftwork import Queue
from shiftwork.model.errors import LeaseLost
from shiftwork.prove.ledger import StoredTotals, read_stored_totals
from shiftwork.prove.run import SETTINGS
from shiftwork.prove.scratch_store import Scratch
from shiftwork.prove.workload import TREE_BUDGET_USD
from shiftwork.testing import MovedClock, pass_time
from tests.crashes.test_prove import RECORDS, ledger

USED = {"cost_usd": 0.01}


class Disturbed(Scratch):
    """Commits a report of another process after each query."""

    loop: asyncio.AbstractEventLoop

    @staticmethod
    async def meanwhile() -> None:
        """Does nothing unless a test replaces it."""

    def read_sqlite(self, connection: apsw.Connection, query: str) -> list[tuple[Any, ...]]:
        found = super().read_sqlite(connection, query)
        asyncio.run_coroutine_threadsafe(self.meanwhile(), self.loop).result(30)
        return found

    async def read_postgres(self, connection: Any, query: str) -> list[tuple[Any, ...]]:
        found = await super().read_postgres(connection, query)
        await self.meanwhile()
        return found


@asynccontextmanager
async def lost_attempts(url: str, folder: Path) -> AsyncIterator[tuple[Disturbed, Queue, list[str]]]:
    """A store of a run with two tasks under a tree budget, each of which six attempts have lost; with their tokens."""
    scratch, clock, tokens = Disturbed(url, folder), MovedClock(), list[str]()
    scratch.loop = asyncio.get_running_loop()
    try:
        async with Queue.open(scratch.url, clock=clock) as queue:
            await queue.settings.change(SETTINGS)
            await queue.agents.register({"id": "worker", "max_concurrent_tasks": 10})
            for _ in range(2):
                await queue.submit(type="parent", tree_budget_usd=TREE_BUDGET_USD, estimated_cost_usd=0.05)
            for _ in range(6):
                tokens += [claim.token for claim in await queue.claim("worker", 2, start=True)]
                for _ in range(2):
                    await pass_time(queue, clock, 600)
            assert len(tokens) == 12
            yield scratch, queue, tokens
    finally:
        scratch.meanwhile = Disturbed.meanwhile  # type: ignore[method-assign]  # the queue is closed
        await scratch.remove()


def misbooked(stored: StoredTotals) -> float:
    found: float = msgspec.structs.asdict(ledger(**stored._asdict()))["misbooked_usd"]
    return found


async def test_reports_between_two_reads_are_no_misbooking(store_url: str, tmp_path: Path) -> None:
    async with lost_attempts(store_url, tmp_path) as (scratch, queue, tokens):
        reported = 0

        async def report() -> None:
            nonlocal reported
            with pytest.raises(LeaseLost):
                await queue.complete(tokens[reported], {}, usage=USED)
            reported += 1

        scratch.meanwhile = report  # type: ignore[method-assign]  # what another process does
        for _ in range(2):
            assert misbooked(await read_stored_totals(scratch.snapshot)) == 0
        assert reported == 8  # one after each query: read apart, the totals of tasks and of attempts differ

        spent = [(await scratch.rows("select coalesce(sum(cost), 0) from attempts"))[0][0] for _ in range(2)]
        assert int(spent[1]) - int(spent[0]) == 10_000, "a read of its own sees what came between"


async def test_attempt_under_way_that_has_reported_is_no_misbooking(store_url: str, tmp_path: Path) -> None:
    async with lost_attempts(store_url, tmp_path) as (scratch, queue, tokens):
        (claim, *_) = await queue.claim("worker", start=True)

        async def report() -> None:
            await queue.heartbeat(claim.token, usage=USED)

        scratch.meanwhile = report  # type: ignore[method-assign]  # what another process does
        assert misbooked(await read_stored_totals(scratch.snapshot)) == 0
        assert misbooked(await read_stored_totals(scratch.snapshot)) == 0
        assert len(tokens) == 12


@pytest.mark.parametrize(
    "planted",
    [
        "update tasks set cost = cost + 20000 where id = (select min(cast(id as text)) from tasks)",
        "update attempts set cost = cost + 20000 where fence = 1",
        "update budgets set spent = spent - 20000",
        "delete from charges",
    ],
)
async def test_real_misbooking_is_reported(store_url: str, tmp_path: Path, planted: str) -> None:
    async with lost_attempts(store_url, tmp_path) as (scratch, queue, tokens):
        for token in tokens[:4]:
            with pytest.raises(LeaseLost):
                await queue.complete(token, {}, usage=USED)
        assert misbooked(await read_stored_totals(scratch.snapshot)) == 0
        await change(scratch, planted)
        found = ledger(**(await read_stored_totals(scratch.snapshot))._asdict())
        assert found.misbooked_usd >= 0.02
        assert "misbooked_usd" in found.violations
        assert RECORDS.attempts


async def change(scratch: Scratch, statement: str) -> None:
    if scratch.is_sqlite:
        file = apsw.Connection(str(scratch.folder / "queue.db"))
        file.set_busy_timeout(10_000)
        file.execute(statement)
        file.close()
        return
    statement = statement.replace("where id = (", "where cast(id as text) = (")
    server = await asyncpg.connect(scratch.url.partition("?")[0], server_settings={"search_path": scratch.schema})
    await server.execute(statement)
    await server.close()
