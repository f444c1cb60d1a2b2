"""A database with high latency: maintenance is slower but complete."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.maintenance import loop
from shiftwork.maintenance.poll import poll
from tests.outages.relay import relay_to
from tests.worker.steps import beat_fast, until_status

SENDERS = "execute", "fetch", "fetchrow", "copy_records_to_table"


@asynccontextmanager
async def maintained(queue: Queue) -> AsyncIterator[None]:
    running = asyncio.create_task(loop.run_forever(queue.engine))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("round_trip_ms", [5, 60, 200])
async def test_task_of_a_silent_agent_is_reclaimed_over_a_slow_connection(
    postgres_url: str, round_trip_ms: int
) -> None:
    await check_reclaim(postgres_url, round_trip_ms / 2000, 1)


async def test_task_of_a_silent_agent_is_reclaimed_among_sixty_workspaces(postgres_url: str) -> None:
    await check_reclaim(postgres_url, 0.01, 60)


async def check_reclaim(database: str, delay_sec: float, workspaces: int) -> None:
    """Check that a reclaim works while only maintenance has a slow connection."""
    async with (
        relay_to(database) as (relay, url),
        await Queue.open(url) as far,
        await Queue.open(database) as near,
    ):
        await fill_workspaces(near, workspaces)
        await beat_fast(near, 6)
        task = await near.submit(type="code", retry={"initial_delay_sec": 3600})
        await near.claim("gone", start=True)
        relay.delay_sec = delay_sec
        async with maintained(far):
            await until_status(near, task.id, "retrying")
        relay.delay_sec = 0.0
        assert far.engine.store.stall_detector.stalls == []


async def fill_workspaces(queue: Queue, count: int) -> None:
    for number in range(count):
        other = queue.in_workspace(f"team-{number}")
        await other.submit(type="code")
        await other.agents.register(id="coder")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes to the server, in order."""
    texts: list[str] = []

    def heard(name: str) -> None:
        real = getattr(asyncpg.Connection, name)

        async def send(self: asyncpg.Connection, text: str, *values: object, **options: object) -> object:
            texts.append(text)
            return await real(self, text, *values, **options)

        monkeypatch.setattr(asyncpg.Connection, name, send)

    for name in SENDERS:
        heard(name)
    return texts


@pytest.mark.parametrize("workspaces", [1, 60])
async def test_maintenance_round_uses_few_statements_for_any_number_of_workspaces(
    postgres_url: str, sent: list[str], workspaces: int
) -> None:
    async with Queue.open(postgres_url) as queue:
        await fill_workspaces(queue, workspaces)
        urgent = {name: entry for name, entry in loop.JOBS.items() if not entry.slow}
        counted = []
        for _ in range(3):
            sent.clear()
            seen = await poll(queue.engine)
            looked = len(sent)
            await loop._run(loop.MaintenanceRound(queue.engine, None, None), seen, urgent)
            counted.append((looked, len(sent) - looked))
    assert max(looked for looked, _ in counted) <= 3
    assert max(rest for _, rest in counted[1:]) <= 12
