"""What waits for a moment comes at that moment; maintenance that is late or rests says so."""

import asyncio
import functools
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import VersionConflict
from shiftwork.duties import runner
from shiftwork.duties.pulse import Pulse
from shiftwork.duties.runner import Complaints, run_once
from shiftwork.policy.silence import Stall
from shiftwork.testing import MovedClock, pass_time
from tests.worker.steps import until

NO_CHANCE = {"jitter": False, "initial_delay_sec": 7}


async def settle(queue: Queue, clock: MovedClock) -> None:
    """Every job has just run: by their periods none is due for a while."""
    await pass_time(queue, clock, 1)


async def test_a_retry_is_claimable_when_its_delay_has_passed(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", retry=NO_CHANCE)
    (held,) = await queue.claim("coder", start=True)
    await queue.fail(held.token, "crash")
    clock.advance(6.5)
    await settle(queue, clock)  # at 7.5, and the promoter's period is 5 s
    await queue.fail((await queue.claim("coder", start=True))[0].token, "crash")
    clock.advance(13.9)
    await run_once(queue.engine)
    assert await queue.claim("coder") == []
    clock.advance(0.1)
    await run_once(queue.engine)
    assert len(await queue.claim("coder")) == 1


async def test_a_rate_limited_task_is_claimable_when_its_time_has_come(queue: Queue, clock: MovedClock) -> None:
    task = await queue.submit(type="code", retry=NO_CHANCE)
    (held,) = await queue.claim("coder", start=True)
    await settle(queue, clock)
    await queue.fail(held.token, "rate_limit", "retry-after: 2")
    due = (await queue.get(task.id)).available_at
    assert due is not None
    assert due < clock() + 5  # sooner than the promoter's period says
    clock.advance(due - clock() - 0.1)
    await run_once(queue.engine)
    assert await queue.claim("coder") == []
    clock.advance(0.1)
    await run_once(queue.engine)
    assert len(await queue.claim("coder")) == 1


async def test_a_wait_for_a_time_ends_at_that_time(queue: Queue, clock: MovedClock) -> None:
    task = await queue.submit(type="code")
    (held,) = await queue.claim("coder", start=True)
    await settle(queue, clock)
    await queue.wait(held.token, "nap", until=clock() + 3)
    clock.advance(2.9)
    await run_once(queue.engine)
    assert (await queue.get(task.id)).status == "pending"
    clock.advance(0.1)
    await run_once(queue.engine)
    assert (await queue.get(task.id)).status == "ready"


async def test_a_loop_wakes_at_the_moment_that_something_waits_for(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", retry=NO_CHANCE)
    (held,) = await queue.claim("coder", start=True)
    await queue.fail(held.token, "crash")
    looks = runner.Looks(queue.engine, Complaints())
    await looks._look()
    assert looks._pause() == runner.TICK_SEC
    clock.advance(6.95)
    await looks._look()
    assert looks._pause() == pytest.approx(0.05)
    clock.advance(0.05)
    await looks._look()
    assert looks._pause() == runner.TICK_SEC  # it is there: the jobs are at it


# -- late, and resting -------------------------------------------------------------------------------------------


async def test_a_job_that_cannot_be_done_is_late(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await settle(queue, clock)

    async def fail(*_: object) -> None:
        raise VersionConflict("no")

    with monkeypatch.context() as broken:
        broken.setitem(runner.DUTIES, "retention", runner.DUTIES["retention"]._replace(run=fail))
        clock.advance(200)
        await run_once(queue.engine, complaints=Complaints())
    assert {job["name"]: job["late_sec"] for job in await queue.duties() if job["late_sec"]} == {"retention": 140.0}
    (alert,) = await queue.alerts()
    assert (alert.kind, alert.message) == ("maintenance_late", "Maintenance job retention is 140 s late")
    clock.advance(30)
    await run_once(queue.engine)
    clock.advance(30)
    await run_once(queue.engine)
    (alert,) = await queue.alerts()
    assert alert.acknowledged_at is not None


async def test_a_rest_says_why_and_until_when(queue: Queue, clock: MovedClock) -> None:
    await settle(queue, clock)
    pulse = Pulse(queue.engine)
    await pulse.beat()
    assert (await job_of(queue, "reclaim"))["rests_until"] is None
    queue.engine.store.hearing.forgive(Stall(clock() - 20, clock(), "nothing was heard for 20 s"))
    await pulse.beat()
    reclaim = await job_of(queue, "reclaim")
    assert (reclaim["rests_until"], reclaim["why"]) == (clock() + 90, "nothing was heard for 20 s")
    clock.advance(90)
    await pulse.beat()
    assert (await job_of(queue, "reclaim"))["rests_until"] is None


async def test_a_rest_of_one_process_is_none_of_the_fleet(queue: Queue, store_url: str, clock: MovedClock) -> None:
    await settle(queue, clock)
    queue.engine.store.hearing.forgive(Stall(clock() - 20, clock(), "nothing was heard for 20 s"))
    await Pulse(queue.engine).beat()
    async with await Queue.open(store_url, clock=clock) as other:
        pulse = Pulse(other.engine)
        pulse._name += " of another process"
        await pulse.beat()
    assert (await job_of(queue, "reclaim"))["rests_until"] is None


async def test_a_process_that_ends_takes_leave(queue: Queue) -> None:
    async def processes() -> int:
        rows = await queue.engine.store.read(lambda tx: tx.all("list_duties"))
        return sum(row["name"].startswith("process:") for row in rows)

    running = asyncio.create_task(runner.run_for_ever(queue.engine))

    async def there() -> bool:
        return await processes() == 1

    await until(there)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await processes() == 0


async def job_of(queue: Queue, name: str) -> dict[str, Any]:
    (job,) = [job for job in await queue.duties() if job["name"] == name]
    return job


async def test_slow_jobs_keep_no_work_waiting(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever walks through all workspaces goes on apart from the jobs that recover work."""
    begun, enough = asyncio.Event(), asyncio.Event()

    async def slow(_engine: object) -> dict[str, int]:
        begun.set()
        await enough.wait()
        return {}

    monkeypatch.setitem(runner.DUTIES, "metrics", runner.DUTIES["metrics"]._replace(after=slow))
    running = asyncio.create_task(runner.run_for_ever(queue.engine))
    await asyncio.wait_for(begun.wait(), 60)
    task = await queue.submit(type="code", retry={"jitter": False, "initial_delay_sec": 0})
    (held,) = await queue.claim("coder", start=True)
    await queue.fail(held.token, "crash")
    await until(functools.partial(is_ready, queue, task.id))
    enough.set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def is_ready(queue: Queue, task_id: str) -> bool:
    return (await queue.get(task_id)).status == "ready"
