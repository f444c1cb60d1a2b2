"""Runs each maintenance job when it is due, once for the whole fleet: the process that locks a job's row does it.

A poll (`poll.py`) reads what is due, in one statement. It runs independently of the jobs: however long these take,
stalls of the store are noticed, and jobs that are due at a moment run at that moment.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from shiftwork.agents import presence
from shiftwork.artifacts import maintenance as artifacts
from shiftwork.batches import maintenance as batches
from shiftwork.budgets import operations as budgets
from shiftwork.engine.engine import NOWHERE, Engine
from shiftwork.fairness import preemption, serial_keys
from shiftwork.limits import maintenance as protection
from shiftwork.maintenance import clock, deadlines, reclaim
from shiftwork.maintenance import jobs as engine_jobs
from shiftwork.maintenance.model import BATCH
from shiftwork.maintenance.poll import IDLE_SEC, JobsSnapshot, is_due, poll
from shiftwork.maintenance.write_probe import ProcessHeartbeat
from shiftwork.model.errors import OperationTimeout, ShiftworkError, StoreError
from shiftwork.notifications import maintenance as notifications
from shiftwork.observe import maintenance as observe
from shiftwork.search import maintenance as search
from shiftwork.settings.model import Maintenance
from shiftwork.snapshots import maintenance as snapshots
from shiftwork.steering import maintenance as steering
from shiftwork.store import crash_points
from shiftwork.store.store import Tx
from shiftwork.triggers import maintenance as triggers
from shiftwork.waits import maintenance as waiting

log = logging.getLogger("shiftwork.maintenance")
TICK_SEC = 0.2
"""The longest time between two polls."""

MIN_SEC = 0.01
MAX_BATCHES = 200
"""Full batches of one job in a row before the others get their turn."""

NO_WORK = frozenset({"resting", "back_sec"})
"""Counts that do not measure work."""

Job = Callable[[Tx, Engine], Awaitable[dict[str, int] | None]]
"""The job's counts; None if this process leaves the job to others."""

After = Callable[[Engine], Awaitable[dict[str, int]]]


class JobSpec(NamedTuple):
    run: Job
    period: Callable[[Maintenance], float]
    after: After | None = None
    """Work to do after the job, outside its transaction."""
    long: bool = False
    """That work takes long, so other jobs do not wait for it."""
    looked_for: bool = False
    """Whether the poll knows that there is work; otherwise it runs once a period."""
    prompt: bool = False
    """Whether the job runs at the moment something is due; the period is the longest delay."""
    slow: bool = False
    """Jobs that walk through workspaces or read much: jobs that recover work do not wait for them."""


JOBS: dict[str, JobSpec] = {
    "clock": JobSpec(clock.correct, lambda m: m.reclaim_sec, looked_for=True),
    "presence": JobSpec(presence.reclaim_gone, lambda m: m.presence_sec, looked_for=True),
    "health": JobSpec(engine_jobs.health, lambda m: m.reclaim_sec),
    "reclaim": JobSpec(reclaim.reclaim, lambda m: m.reclaim_sec, looked_for=True),
    "promote": JobSpec(engine_jobs.promote, lambda m: m.retry_promoter_sec, looked_for=True, prompt=True),
    "waits": JobSpec(waiting.waits, lambda m: m.retry_promoter_sec, looked_for=True, prompt=True),
    "approvals": JobSpec(waiting.approvals, lambda m: m.retry_promoter_sec, looked_for=True, prompt=True),
    "gates": JobSpec(protection.open_gates, lambda m: m.gates_sec, looked_for=True, prompt=True),
    "rerank": JobSpec(engine_jobs.rerank, lambda m: m.rerank_sec, looked_for=True),
    "deadlines": JobSpec(deadlines.deadlines, lambda m: m.rerank_sec, looked_for=True, prompt=True),
    "expiries": JobSpec(deadlines.expiries, lambda m: m.rerank_sec, looked_for=True, prompt=True),
    "serials": JobSpec(serial_keys.maintain, lambda m: m.retry_promoter_sec, looked_for=True, prompt=True),
    "preempt": JobSpec(preemption.poll_yields, lambda m: m.rerank_sec),
    "dependencies": JobSpec(engine_jobs.missing_dependencies, lambda m: m.dependencies_sec, looked_for=True),
    "budgets": JobSpec(budgets.maintain, lambda m: m.budgets_sec, looked_for=True),
    "triggers": JobSpec(triggers.elect, lambda m: m.triggers_sec, triggers.run, looked_for=True, prompt=True),
    "notifications": JobSpec(
        notifications.forget, lambda m: m.notifications_sec, notifications.fill, looked_for=True, slow=True
    ),
    "search": JobSpec(search.elect, lambda m: m.search_sec, search.fill, looked_for=True, slow=True),
    "counts": JobSpec(observe.elect_counter, lambda m: m.search_sec, observe.count_tasks, looked_for=True, slow=True),
    "batches": JobSpec(batches.elect, lambda m: m.batches_sec, batches.run, long=True, slow=True),
    "instructions": JobSpec(steering.close_ended, lambda m: m.retention_sec, slow=True),
    "stale": JobSpec(engine_jobs.stale, lambda m: m.stale_sec, slow=True),
    "displaced": JobSpec(engine_jobs.displaced, lambda m: m.dead_letter_sec, slow=True),
    "metrics": JobSpec(observe.mark_seen, lambda m: m.metrics_sec, observe.measure, slow=True),
    "retention": JobSpec(engine_jobs.retention, lambda m: m.retention_sec, slow=True),
    "artifacts": JobSpec(artifacts.collect, lambda m: m.retention_sec, artifacts.remove, slow=True),
    "indexes": JobSpec(
        engine_jobs.elect_index_rebuild,
        lambda _: engine_jobs.REBUILD_PERIOD_SEC,
        engine_jobs.rebuild_indexes,
        long=True,
        slow=True,
    ),
    "snapshot": JobSpec(
        snapshots.is_ours, lambda m: m.snapshot_sec, snapshots.take, long=True, looked_for=True, slow=True
    ),
    "alerts": JobSpec(observe.check_store, lambda m: m.metrics_sec, observe.check_workspaces, slow=True),
}
"""All jobs in the order they run; the last one checks whether any is late."""


class BackgroundRuns:
    """Work that runs independently of the jobs, at most one of each kind."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[dict[str, int]]] = {}

    def start(self, engine: Engine, name: str, after: After) -> None:
        earlier = self._under_way.get(name)
        if earlier is None or earlier.done():
            self._under_way[name] = asyncio.create_task(_afterwards(engine, name, after))
        else:
            log.warning("%s takes longer than its period", name)

    async def end(self) -> None:
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)


class ErrorThrottle:
    """Logs each cause of failing jobs once instead of four times a second."""

    def __init__(self) -> None:
        self._stated: dict[str, str] = {}

    def report(self, who: str, error: Exception) -> None:
        what = error.code if isinstance(error, ShiftworkError) else type(error).__name__
        if self._stated.get(who) != what:
            unforeseen = None if isinstance(error, ShiftworkError) else error
            log.warning("%s: %s", who, error, exc_info=unforeseen)
        self._stated[who] = what

    def clear(self, who: str) -> None:
        self._stated.pop(who, None)


async def run_once(
    engine: Engine,
    *,
    force: bool = False,
    throttle: ErrorThrottle | None = None,
) -> dict[str, dict[str, int]]:
    """Run every job that is due now (or all), each to the end of its work; returns their counts.

    With a `throttle`, a failing job does not prevent the others, unless the store is unreachable.
    """
    return await _run(MaintenanceRound(engine, None, throttle), await poll(engine), JOBS, force=force)


async def run_work(engine: Engine) -> dict[str, dict[str, int]]:
    """Run every job that has work, although it may have run within its period, and every job that is due.

    An earlier job may make work for a later one, so the poll is repeated after each that did something.
    """
    turn, seen = MaintenanceRound(engine, None, None), await poll(engine)
    await _record_idle(engine, seen, JOBS, force=False)
    done: dict[str, dict[str, int]] = {}
    for name, entry in JOBS.items():
        if not (seen.has_work(name) if entry.looked_for else _is_due(seen, name, entry)):
            continue
        total = await _do(turn, name, entry, entry.period(seen.maintenance), force=True)
        if total:
            done[name] = total
            seen = await poll(engine)
    return done


class MaintenanceRound(NamedTuple):
    """The state shared by the jobs of a round."""

    engine: Engine
    background: BackgroundRuns | None
    throttle: ErrorThrottle | None


async def _run(
    turn: MaintenanceRound, seen: JobsSnapshot, jobs: dict[str, JobSpec], *, force: bool = False
) -> dict[str, dict[str, int]]:
    """Run those of these jobs that are due according to a poll."""
    done: dict[str, dict[str, int]] = {}
    await _record_idle(turn.engine, seen, jobs, force=force)
    for name, entry in jobs.items():
        if not (force or _is_due(seen, name, entry)):
            continue
        try:
            total = await _do(turn, name, entry, entry.period(seen.maintenance), force=force)
        except Exception as error:
            if turn.throttle is None or isinstance(error, StoreError | OperationTimeout):
                raise
            turn.throttle.report(f"{name} waits", error)
            continue
        if turn.throttle is not None:
            turn.throttle.clear(f"{name} waits")
        if total:
            done[name] = total
    return done


def _is_due(seen: JobsSnapshot, name: str, entry: JobSpec) -> bool:
    if not entry.looked_for:
        return seen.is_due(name, entry.period(seen.maintenance))
    if entry.prompt and seen.has_timed_work(name):
        return True
    return seen.has_work(name) and seen.is_due(name, entry.period(seen.maintenance))


async def _record_idle(engine: Engine, seen: JobsSnapshot, jobs: dict[str, JobSpec], *, force: bool) -> None:
    """Record that jobs without work were checked: all at once, and not at every poll."""
    idle = [
        (name, seen.now + entry.period(seen.maintenance))
        for name, entry in jobs.items()
        if name in seen.shared and not _is_due(seen, name, entry) and _is_old(seen, name)
    ]
    if idle and not force and not seen.has_work("clock"):
        await crash_points.named(
            "maintenance", engine.store.run(lambda tx: tx.run("note_idle", items=sorted(idle), now=tx.now))
        )


def _is_old(seen: JobsSnapshot, name: str) -> bool:
    job = seen.jobs.get(name)
    return job is None or (job["last_run_at"] or 0.0) <= seen.now - IDLE_SEC


async def _do(
    turn: MaintenanceRound, name: str, entry: JobSpec, period: float, *, force: bool
) -> dict[str, int] | None:
    total = await _to_the_end(turn.engine, name, entry, period, force=force)
    if total is None or entry.after is None:
        return total
    if entry.long and turn.background is not None:
        turn.background.start(turn.engine, name, entry.after)
        return None
    later = await _afterwards(turn.engine, name, entry.after)
    return {key: total.get(key, 0) + later.get(key, 0) for key in [*total, *later]}


async def _to_the_end(
    engine: Engine, name: str, entry: JobSpec, period: float, *, force: bool
) -> dict[str, int] | None:
    """Run one job, batch after batch; None if it is not due, or another process is running it."""
    total: dict[str, int] | None = None
    for _ in range(MAX_BATCHES):
        again = force or entry.prompt or bool(total)
        turn = functools.partial(_run_locked, engine=engine, name=name, entry=entry, period=period, force=again)
        counts = await crash_points.named(f"maintenance {name}", engine.store.run(turn))
        if counts is None:
            break
        total = total or {}
        for key, value in counts.items():
            total[key] = total.get(key, 0) + value
        if sum(value for key, value in counts.items() if key not in NO_WORK) < BATCH:
            break
    return total


async def _afterwards(engine: Engine, name: str, after: After) -> dict[str, int]:
    """Do the work after a job; its failure does not prevent other jobs."""
    try:
        return await crash_points.named(f"maintenance {name}", _called(after, engine))
    except ShiftworkError as error:
        log.warning("%s waits: %s", name, error)
        return {}


async def _called(after: After, engine: Engine) -> dict[str, int]:
    return await after(engine)


async def _run_locked(
    tx: Tx, engine: Engine, name: str, entry: JobSpec, period: float, *, force: bool
) -> dict[str, int] | None:
    """Run one batch, if the job is due and no other process is running it. The row's lock is the election."""
    row = await tx.one("job_row", name=name)
    if row is None:
        await tx.run("add_job", name=name, due_at=tx.now)
        row = await tx.one("job_row", name=name)
    if row is None or not (force or is_due(row, tx.now, period)):
        return None
    began = time.perf_counter()
    counts = await entry.run(tx, engine)
    if counts is None:
        return None
    await tx.run(
        "finish_job",
        name=name,
        due_at=tx.now + (max(period, IDLE_SEC) if counts is NOWHERE else period),
        now=tx.now,
        took_sec=time.perf_counter() - began,
        counts=msgspec.json.encode(counts).decode(),
    )
    return counts


class JobPoller:
    """Polls forever, and passes the newest snapshot to the loops that run the jobs."""

    def __init__(self, engine: Engine, throttle: ErrorThrottle) -> None:
        self._engine = engine
        self._throttle = throttle
        self._seen: JobsSnapshot | None = None
        self._news = asyncio.Condition()

    async def poll_forever(self) -> None:
        stalls = self._engine.store.stall_detector
        stalls.begin()
        try:
            while True:
                await self._poll()
                await asyncio.sleep(self._pause())
        finally:
            stalls.end()

    async def _poll(self) -> None:
        began = time.perf_counter()
        try:
            seen = await poll(self._engine)
        except Exception as error:  # noqa: BLE001  # whatever it is, the next poll may succeed
            self._throttle.report("maintenance cannot poll", error)
            return
        self._throttle.clear("maintenance cannot poll")
        self._engine.store.stall_detector.record(time.perf_counter() - began)
        async with self._news:
            self._seen = seen
            self._news.notify_all()

    def _pause(self) -> float:
        """Wait until the next poll; less if something is due sooner."""
        moment = self._seen and self._seen.next_moment(PROMPT)
        if not moment:
            return TICK_SEC
        return min(TICK_SEC, max(MIN_SEC, moment - self._engine.store.now()))

    async def after(self, seen: JobsSnapshot | None) -> JobsSnapshot:
        """Wait for a newer snapshot than this one."""
        async with self._news:
            while self._seen is None or self._seen is seen:
                await self._news.wait()
            return self._seen


PROMPT = {name for name, entry in JOBS.items() if entry.prompt}


async def run_forever(engine: Engine) -> None:
    """Poll and run due jobs until cancelled. A failing job is logged and retried."""
    turn = MaintenanceRound(engine, BackgroundRuns(), ErrorThrottle())
    looks, pulse = JobPoller(engine, turn.throttle or ErrorThrottle()), ProcessHeartbeat(engine)
    loops = [looks.poll_forever(), pulse.beat_forever(), _run_forever(turn, looks, slow=False)]
    tasks = [asyncio.ensure_future(loop) for loop in [*loops, _run_forever(turn, looks, slow=True)]]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            if not task.cancelling():  # those already ending may deregister
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if turn.background is not None:
            await turn.background.end()


async def _run_forever(turn: MaintenanceRound, looks: JobPoller, *, slow: bool) -> None:
    """Run the jobs that recover work, or the slow ones; neither group waits for the other."""
    assert turn.throttle is not None
    who = "slow maintenance waits" if slow else "maintenance waits"
    seen: JobsSnapshot | None = None
    while True:
        seen = await looks.after(seen)
        jobs = {name: entry for name, entry in JOBS.items() if entry.slow is slow}
        try:
            await _run(turn, seen, jobs)
            turn.throttle.clear(who)
        except Exception as error:  # noqa: BLE001  # whatever it is, the next round may succeed
            turn.throttle.report(who, error)
