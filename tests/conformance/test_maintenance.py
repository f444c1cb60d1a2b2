"""Due work is released at its time; maintenance that is late or suspended reports it."""

import asyncio
import functools

import pytest

from shiftwork import Queue
from shiftwork.control.model import MaintenanceJob
from shiftwork.maintenance import loop
from shiftwork.maintenance.loop import ErrorThrottle, run_once
from shiftwork.maintenance.write_probe import ProcessHeartbeat
from shiftwork.model.errors import VersionConflict
from shiftwork.model.heartbeat_grace import Stall
from shiftwork.testing import MovedClock
from tests.conformance.steps import pass_time_exactly
from tests.worker.steps import until

NO_CHANCE = {"jitter": False, "initial_delay_sec": 7}


async def settle(queue: Queue, clock: MovedClock) -> None:
    """Run every job, so that none is due for a while."""
    await pass_time_exactly(queue, clock, 1)


async def test_retry_is_claimable_when_its_delay_has_passed(queue: Queue, clock: MovedClock) -> None:
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


async def test_rate_limited_task_is_claimable_when_due(queue: Queue, clock: MovedClock) -> None:
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


async def test_timed_wait_ends_at_its_time(queue: Queue, clock: MovedClock) -> None:
    task = await queue.submit(type="code")
    (held,) = await queue.claim("coder", start=True)
    await settle(queue, clock)
    await queue.waits.wait(held.token, "nap", until=clock() + 3)
    clock.advance(2.9)
    await run_once(queue.engine)
    assert (await queue.get(task.id)).status == "pending"
    clock.advance(0.1)
    await run_once(queue.engine)
    assert (await queue.get(task.id)).status == "ready"


async def test_maintenance_loop_wakes_when_the_next_task_is_due(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", retry=NO_CHANCE)
    (held,) = await queue.claim("coder", start=True)
    await queue.fail(held.token, "crash")
    looks = loop.JobPoller(queue.engine, ErrorThrottle())
    await looks._poll()
    assert looks._pause() == loop.TICK_SEC
    clock.advance(6.95)
    await looks._poll()
    assert looks._pause() == pytest.approx(0.05)
    clock.advance(0.05)
    await looks._poll()
    assert looks._pause() == loop.TICK_SEC  # it is there: the jobs are at it


async def test_failing_maintenance_job_raises_late_alert_until_it_runs(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await settle(queue, clock)

    async def fail(*_: object) -> None:
        raise VersionConflict("no")

    with monkeypatch.context() as broken:
        broken.setitem(loop.JOBS, "retention", loop.JOBS["retention"]._replace(run=fail))
        clock.advance(200)
        await run_once(queue.engine, throttle=ErrorThrottle())
    assert {job.name: job.late_sec for job in await queue.control.maintenance() if job.late_sec} == {"retention": 140.0}
    (alert,) = await queue.alerts.list()
    assert (alert.kind, alert.message) == ("maintenance_late", "Maintenance job retention is 140 s late")
    clock.advance(30)
    await run_once(queue.engine)
    clock.advance(30)
    await run_once(queue.engine)
    (alert,) = await queue.alerts.list()
    assert alert.acknowledged_at is not None


async def test_suspended_reclaim_reports_reason_and_end(queue: Queue, clock: MovedClock) -> None:
    await settle(queue, clock)
    pulse = ProcessHeartbeat(queue.engine)
    await pulse.beat()
    assert (await job_of(queue, "reclaim")).rests_until is None
    queue.engine.store.stall_detector.forgive(Stall(clock() - 20, clock(), "nothing was heard for 20 s"))
    await pulse.beat()
    reclaim = await job_of(queue, "reclaim")
    assert (reclaim.rests_until, reclaim.why) == (clock() + 90, "nothing was heard for 20 s")
    clock.advance(90)
    await pulse.beat()
    assert (await job_of(queue, "reclaim")).rests_until is None


async def test_suspension_in_one_process_does_not_suspend_others(
    queue: Queue, store_url: str, clock: MovedClock
) -> None:
    await settle(queue, clock)
    queue.engine.store.stall_detector.forgive(Stall(clock() - 20, clock(), "nothing was heard for 20 s"))
    await ProcessHeartbeat(queue.engine).beat()
    async with Queue.open(store_url, clock=clock) as other:
        pulse = ProcessHeartbeat(other.engine)
        pulse._name += " of another process"
        await pulse.beat()
    assert (await job_of(queue, "reclaim")).rests_until is None


async def test_ending_process_removes_its_maintenance_row(queue: Queue) -> None:
    async def processes() -> int:
        rows = await queue.engine.store.read(lambda tx: tx.all("list_jobs"))
        return sum(row["name"].startswith("process:") for row in rows)

    running = asyncio.create_task(loop.run_forever(queue.engine))

    async def there() -> bool:
        return await processes() == 1

    await until(there)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await processes() == 0


async def job_of(queue: Queue, name: str) -> MaintenanceJob:
    (job,) = [job for job in await queue.control.maintenance() if job.name == name]
    return job


async def test_slow_maintenance_jobs_do_not_delay_recovery_jobs(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that scan all workspaces run separately from the jobs that recover work."""
    begun, enough = asyncio.Event(), asyncio.Event()

    async def slow(_engine: object) -> dict[str, int]:
        begun.set()
        await enough.wait()
        return {}

    monkeypatch.setitem(loop.JOBS, "metrics", loop.JOBS["metrics"]._replace(after=slow))
    running = asyncio.create_task(loop.run_forever(queue.engine))
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
