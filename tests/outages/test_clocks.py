"""On PostgreSQL the clock is the database's: processes whose own clocks disagree still agree about time."""

import asyncio
import sys
from asyncio.subprocess import PIPE

import pytest

from shiftwork import Queue
from shiftwork.duties.runner import note_absence
from shiftwork.store.postgres import DatabaseClock, PostgresStore
from shiftwork.testing import MovedClock, pass_time


@pytest.mark.parametrize("seconds", [-86_400, 3_600])
async def test_a_process_with_a_wrong_clock_has_the_right_time(postgres_dsn: str, seconds: int) -> None:
    async with await Queue.open(postgres_dsn) as queue:
        before = queue.now()
        program = [sys.executable, "-m", "tests.outages.skewed", postgres_dsn, str(seconds)]
        process = await asyncio.create_subprocess_exec(*program, stdout=PIPE)
        out, _ = await process.communicate()
        theirs, created = map(float, out.split())
        assert before < theirs < queue.now()
        assert before < created < queue.now()


async def test_a_step_of_the_database_s_clock_lets_reclaim_rest(postgres_dsn: str) -> None:
    async with await Queue.open(postgres_dsn) as queue:
        store = queue.engine.store
        assert isinstance(store, PostgresStore)
        assert store.unsettled_since() == 0.0
        store._database_clock._take(store._database_clock._offset + 0.5)
        assert store.unsettled_since() == 0.0
        store._database_clock._take(store._database_clock._offset + 30)
        assert abs(store.unsettled_since() - queue.now()) < 5


def test_the_first_measure_is_no_step() -> None:
    clock = DatabaseClock()
    clock._take(12_345.0)
    assert clock.jumped_at == 0.0


async def test_a_process_that_slept_lets_reclaim_rest(queue: Queue, clock: MovedClock) -> None:
    """A laptop asleep for ten minutes: nobody could beat, so nobody is declared dead at once."""
    task = await queue.submit(type="code")
    await queue.claim("worker", start=True)
    clock.advance(600)
    note_absence(queue.engine, 600)
    await pass_time(queue, clock, 1)
    assert (await queue.get(task.id)).status == "running"
    await pass_time(queue, clock, 90)
    assert (await queue.get(task.id)).status == "retrying"
