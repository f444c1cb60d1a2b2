"""Clocks that disagree, jump and go back, and processes that stall."""

import asyncio
import sys
from asyncio.subprocess import PIPE

import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.store.postgres import PostgresStore
from shiftwork.store.stalls import StallDetector
from shiftwork.testing import MovedClock, pass_time

TIMEOUT_SEC = 90
"""After this long a silent agent loses its work."""


@pytest.mark.parametrize("seconds", [-86_400, 3_600])
async def test_process_with_a_wrong_clock_uses_database_time(postgres_dsn: str, seconds: int) -> None:
    """On PostgreSQL the database clock counts: processes whose own clocks disagree still agree about time."""
    async with Queue.open(postgres_dsn) as queue:
        before = queue.now()
        program = [sys.executable, "-m", "tests.outages.skewed", postgres_dsn, str(seconds)]
        process = await asyncio.create_subprocess_exec(*program, stdout=PIPE)
        out, _ = await process.communicate()
        theirs, created = map(float, out.split())
        assert before < theirs < queue.now()
        assert before < created < queue.now()


async def test_step_of_the_database_clock_is_detected(postgres_dsn: str) -> None:
    async with Queue.open(postgres_dsn) as queue:
        store = queue.engine.store
        assert isinstance(store, PostgresStore)
        store.stall_detector.begin()
        store._database_clock._take(store._database_clock._offset + 0.5)
        store.stall_detector.check()
        assert store.stall_detector.stalls == []
        store._database_clock._take(store._database_clock._offset + 30)
        store.stall_detector.check()
        (stall,) = store.stall_detector.stalls
        assert "the clock went ahead by 30 s" in stall.why


class Times:
    """The store's clock, and the monotonic clock of a process."""

    def __init__(self, clock: MovedClock, listening: StallDetector) -> None:
        self.clock = clock
        self.steady = 0.0
        listening.steady = lambda: self.steady
        listening.begin()
        self._hearing = listening

    def stand_still(self, seconds: float) -> None:
        """Let time pass without any heartbeat."""
        self.clock.advance(seconds)
        self.steady += seconds

    def listen(self, seconds: int) -> None:
        for _ in range(seconds):
            self.stand_still(1)
            self._hearing.record(0.001)


@pytest.fixture
def times(queue: Queue, clock: MovedClock) -> Times:
    return Times(clock, queue.engine.store.stall_detector)


async def test_stall_does_not_reclaim_from_live_agents(queue: Queue, times: Times) -> None:
    """During a stop or a sleep of the machine, no agent could send heartbeats, so nothing is reclaimed at once."""
    task = await queue.submit(type="code")
    (held,) = await queue.claim("worker", start=True)
    times.stand_still(600)
    await run_once(queue.engine, force=True)
    assert (await queue.get(task.id)).status == "running"
    times.listen(30)
    await queue.heartbeat(held.token)
    times.listen(TIMEOUT_SEC - 1)
    await run_once(queue.engine, force=True)
    assert (await queue.get(task.id)).status == "running"


async def test_agent_silent_after_a_stall_loses_its_task(queue: Queue, times: Times) -> None:
    task = await queue.submit(type="code")
    await queue.claim("worker", start=True)
    times.stand_still(600)
    await run_once(queue.engine, force=True)
    times.listen(TIMEOUT_SEC - 1)
    await run_once(queue.engine, force=True)
    assert (await queue.get(task.id)).status == "running"
    times.listen(1)
    await run_once(queue.engine, force=True)
    assert (await queue.get(task.id)).status == "retrying"


async def test_repeated_stalls_do_not_keep_a_lease_forever(queue: Queue, times: Times) -> None:
    task = await queue.submit(type="code", retry={"initial_delay_sec": 3600})
    await queue.claim("worker", start=True)
    for _ in range(2 * TIMEOUT_SEC // 5):
        times.stand_still(5)
        await run_once(queue.engine, force=True)
        times.listen(5)
    await run_once(queue.engine, force=True)
    assert (await queue.get(task.id)).status == "retrying"


@pytest.mark.parametrize("ahead", [3600.0, 100.0])
async def test_clock_jump_does_not_reclaim_from_live_agents(queue: Queue, times: Times, ahead: float) -> None:
    queue.engine.store.stall_detector.watches_clock = True
    task = await queue.submit(type="code")
    (held,) = await queue.claim("worker", start=True)
    times.clock.advance(ahead)
    await run_once(queue.engine, force=True)
    assert (await queue.get(task.id)).status == "running"
    times.listen(15)
    await queue.heartbeat(held.token)
    times.listen(TIMEOUT_SEC)
    await run_once(queue.engine, force=True)
    assert (await queue.get(task.id)).status == "retrying"  # silent since


async def test_stall_does_not_count_as_execution_time(queue: Queue, times: Times) -> None:
    task = await queue.submit(type="code", timeout_sec=300, retry={"initial_delay_sec": 3600})
    (held,) = await queue.claim("worker", start=True)
    times.stand_still(600)
    for _ in range(5):
        await queue.heartbeat(held.token)
        times.listen(59)
        await run_once(queue.engine, force=True)
        assert (await queue.get(task.id)).status == "running"
    await queue.heartbeat(held.token)
    times.listen(66)  # with the grace that a timeout has
    await run_once(queue.engine, force=True)
    assert (await queue.get(task.id)).failure_history[-1].reason == "timeout"


async def test_stalled_process_does_not_disable_the_others(
    queue: Queue, store_url: str, times: Times, clock: MovedClock
) -> None:
    task = await queue.submit(type="code")
    await queue.claim("worker", start=True)
    times.stand_still(600)
    await run_once(queue.engine, force=True)
    assert (await queue.get(task.id)).status == "running"
    async with Queue.open(store_url, clock=clock) as other:
        await run_once(other.engine, force=True)
    assert (await queue.get(task.id)).status == "retrying"


@pytest.fixture(params=[3_600, 86_400])
async def went_back(queue: Queue, clock: MovedClock, request: pytest.FixtureRequest) -> Queue:
    """A queue whose clock went back while tasks were claimed or waited for a retry, and a type was in cooldown."""
    await pass_time(queue, clock, 1)
    await queue.submit(type="code", id="held")
    await queue.submit(type="test", id="tried", retry={"initial_delay_sec": 30, "jitter": False})
    await queue.claim("dead", types=["code"], start=True)
    (tried,) = await queue.claim("coder", types=["test"], start=True)
    await queue.fail(tried.token, "crash")
    await run_once(queue.engine)
    clock.advance(-request.param)
    return queue


async def test_tasks_are_recovered_after_the_clock_went_back(went_back: Queue, clock: MovedClock) -> None:
    await run_once(went_back.engine)
    clock.advance(29)
    await run_once(went_back.engine)
    assert (await went_back.get("tried")).status == "retrying"
    clock.advance(2)
    await run_once(went_back.engine)
    assert (await went_back.get("tried")).status == "ready"
    assert (await went_back.get("held")).status == "running"
    clock.advance(TIMEOUT_SEC)
    await run_once(went_back.engine)
    assert (await went_back.get("held")).status == "retrying"


async def test_every_maintenance_job_runs_after_the_clock_went_back(went_back: Queue, clock: MovedClock) -> None:
    for _ in range(70):
        await run_once(went_back.engine)
        clock.advance(10)
    ran = {job.name: job.last_run_at for job in await went_back.control.maintenance() if job.name != "snapshot"}
    assert {name for name, at in ran.items() if at is not None and at < clock() - 650} == {
        "clock"
    }  # it ran once, after the step


AHEAD_SEC = 3_600.0


async def _claimed_first(queue: Queue, clock: MovedClock) -> str | None:
    """What is handed out first, after the clock went back and a newer task was submitted."""
    clock.advance(-AHEAD_SEC)
    await run_once(queue.engine)
    clock.advance(1)
    await queue.submit(type="code", id="newer")
    clock.advance(60)
    await run_once(queue.engine)
    (claim,) = await queue.claim("coder")
    return claim.task().external_id


@pytest.mark.parametrize("ordering", ["effective", "fifo"])
async def test_task_submitted_while_the_clock_was_ahead_keeps_its_place(
    queue: Queue, clock: MovedClock, ordering: str
) -> None:
    await queue.settings.change({"ordering": ordering})
    await run_once(queue.engine, force=True)
    clock.advance(AHEAD_SEC)
    await run_once(queue.engine, force=True)
    await queue.submit(type="code", id="older")
    assert await _claimed_first(queue, clock) == "older"
    assert (await queue.get("older")).created_at <= clock()


async def test_task_released_while_the_clock_was_ahead_keeps_its_place(queue: Queue, clock: MovedClock) -> None:
    retry = {"keep_position": False, "initial_delay_sec": 5, "jitter": False}
    await queue.settings.change({"ordering": "fifo"})
    await queue.submit(type="code", id="older", retry=retry)
    (held,) = await queue.claim("coder", start=True)
    clock.advance(AHEAD_SEC)
    await queue.fail(held.token, "crash")
    await pass_time(queue, clock, 10)
    assert (await queue.get("older")).status == "ready"
    assert await _claimed_first(queue, clock) == "older"


async def test_task_of_a_later_time_keeps_that_time_after_the_clock_went_back(queue: Queue, clock: MovedClock) -> None:
    run_at = clock() + 2 * AHEAD_SEC
    await run_once(queue.engine, force=True)
    clock.advance(AHEAD_SEC)
    await run_once(queue.engine, force=True)
    await queue.submit(type="code", id="later", run_at=run_at)
    clock.advance(-AHEAD_SEC)
    await pass_time(queue, clock, 2 * AHEAD_SEC - 60)
    assert await queue.claim("coder") == []
    await pass_time(queue, clock, 61)
    assert [claim.task().external_id for claim in await queue.claim("coder")] == ["later"]
