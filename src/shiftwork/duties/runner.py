"""Runs each maintenance job when it is due, once for the whole fleet: the process that locks a job's row does it.

A look (`looking.py`) says what is due, in one statement. It goes on apart from the jobs: however long these take, it is
known whether the store can be heard, and what waits for a moment is done at that moment.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from shiftwork.core.errors import OperationTimeout, ShiftworkError, StoreError
from shiftwork.core.settings import Maintenance
from shiftwork.duties import (
    artifacts,
    clock,
    deadlines,
    duties,
    measuring,
    notifications,
    presence,
    protection,
    reclaim,
    snapshots,
    triggers,
    waiting,
    watching,
)
from shiftwork.duties.looking import IDLE_SEC, Look, is_due, look
from shiftwork.duties.pulse import Pulse
from shiftwork.queue.engine import NOWHERE, Engine
from shiftwork.queue.fairness import serials, yielding
from shiftwork.queue.money import budgets
from shiftwork.store.store import Tx

log = logging.getLogger("shiftwork.duties")
TICK_SEC = 0.2
"""The longest time between two looks."""

LEAST_SEC = 0.01
MOST_BATCHES = 200
"""Full batches of one job in a row before the others get their turn."""

NO_WORK = frozenset({"resting", "back_sec"})
"""Counts that do not say how much was done."""

Duty = Callable[[Tx, Engine], Awaitable[dict[str, int] | None]]
"""What it did; None where this process leaves it to others."""

After = Callable[[Engine], Awaitable[dict[str, int]]]


class Entry(NamedTuple):
    run: Duty
    period: Callable[[Maintenance], float]
    after: After | None = None
    """What is done after its turn, outside of its transaction."""
    long: bool = False
    """What is done then takes so long that no other job waits for it."""
    looked_for: bool = False
    """Whether a look says that there is something to do; else it runs once a period."""
    prompt: bool = False
    """Whether what waits for a moment is done then; the period is the longest that it can take."""
    slow: bool = False
    """What walks through workspaces or reads much: the jobs that recover work do not wait for it."""


DUTIES: dict[str, Entry] = {
    "clock": Entry(clock.correct, lambda m: m.reclaim_sec, looked_for=True),
    "presence": Entry(presence.hand_back, lambda m: m.presence_sec, looked_for=True),
    "health": Entry(duties.health, lambda m: m.reclaim_sec),
    "reclaim": Entry(reclaim.reclaim, lambda m: m.reclaim_sec, looked_for=True),
    "promote": Entry(duties.promote, lambda m: m.retry_promoter_sec, looked_for=True, prompt=True),
    "waits": Entry(waiting.waits, lambda m: m.retry_promoter_sec, looked_for=True, prompt=True),
    "approvals": Entry(waiting.approvals, lambda m: m.retry_promoter_sec, looked_for=True, prompt=True),
    "gates": Entry(protection.open_gates, lambda m: m.gates_sec, looked_for=True, prompt=True),
    "rerank": Entry(duties.rerank, lambda m: m.rerank_sec, looked_for=True),
    "deadlines": Entry(deadlines.deadlines, lambda m: m.rerank_sec, looked_for=True, prompt=True),
    "serials": Entry(serials.tend, lambda m: m.retry_promoter_sec, looked_for=True, prompt=True),
    "preempt": Entry(yielding.look, lambda m: m.rerank_sec),
    "dependencies": Entry(duties.missing_dependencies, lambda m: m.dependencies_sec, looked_for=True),
    "budgets": Entry(budgets.tend, lambda m: m.budgets_sec, looked_for=True),
    "triggers": Entry(triggers.elect, lambda m: m.triggers_sec, triggers.run, looked_for=True, prompt=True),
    "notifications": Entry(
        notifications.forget, lambda m: m.notifications_sec, notifications.fill, looked_for=True, slow=True
    ),
    "stale": Entry(duties.stale, lambda m: m.stale_sec, slow=True),
    "displaced": Entry(duties.displaced, lambda m: m.dead_letter_sec, slow=True),
    "metrics": Entry(measuring.see, lambda m: m.metrics_sec, measuring.measure, slow=True),
    "retention": Entry(duties.retention, lambda m: m.retention_sec, slow=True),
    "artifacts": Entry(artifacts.collect, lambda m: m.retention_sec, artifacts.remove, slow=True),
    "snapshot": Entry(
        snapshots.is_ours, lambda m: m.snapshot_sec, snapshots.take, long=True, looked_for=True, slow=True
    ),
    "alerts": Entry(watching.look_at_store, lambda m: m.metrics_sec, watching.look_at_workspaces, slow=True),
}
"""In the order in which they run; the last looks whether one of them is late."""


class Beside:
    """What goes on apart from the other jobs, one of each kind at most."""

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


class Complaints:
    """What keeps jobs from being done, each said once and not four times a second."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def hear(self, who: str, error: Exception) -> None:
        what = error.code if isinstance(error, ShiftworkError) else type(error).__name__
        if self._said.get(who) != what:
            unforeseen = None if isinstance(error, ShiftworkError) else error
            log.warning("%s: %s", who, error, exc_info=unforeseen)
        self._said[who] = what

    def forget(self, who: str) -> None:
        self._said.pop(who, None)


async def run_once(
    engine: Engine, *, force: bool = False, beside: Beside | None = None, complaints: Complaints | None = None
) -> dict[str, dict[str, int]]:
    """Run every job that is due now (or all of them), each to the end of its work; what each did.

    What takes long is only begun where it may go on `beside`. With `complaints` a job that fails keeps no other from
    its turn, unless it is the store that is away.
    """
    return await _run(Round(engine, beside, complaints), await look(engine), DUTIES, force=force)


class Round(NamedTuple):
    """What the jobs of a round share."""

    engine: Engine
    beside: Beside | None
    complaints: Complaints | None


async def _run(turn: Round, seen: Look, jobs: dict[str, Entry], *, force: bool = False) -> dict[str, dict[str, int]]:
    """Run those of these jobs that are due by a look."""
    done: dict[str, dict[str, int]] = {}
    await _note_idle(turn.engine, seen, jobs, force=force)
    for name, entry in jobs.items():
        if not (force or _is_due(seen, name, entry)):
            continue
        try:
            total = await _do(turn, name, entry, entry.period(seen.maintenance), force=force)
        except Exception as error:
            if turn.complaints is None or isinstance(error, StoreError | OperationTimeout):
                raise
            turn.complaints.hear(f"{name} waits", error)
            continue
        if turn.complaints is not None:
            turn.complaints.forget(f"{name} waits")
        if total:
            done[name] = total
    return done


def _is_due(seen: Look, name: str, entry: Entry) -> bool:
    if not entry.looked_for:
        return seen.is_due(name, entry.period(seen.maintenance))
    if entry.prompt and seen.moment_has_come(name):
        return True
    return seen.has_work(name) and seen.is_due(name, entry.period(seen.maintenance))


async def _note_idle(engine: Engine, seen: Look, jobs: dict[str, Entry], *, force: bool) -> None:
    """Write down that jobs without work were looked after: all at once, and not at every look."""
    idle = [
        (name, seen.now + entry.period(seen.maintenance))
        for name, entry in jobs.items()
        if name in seen.shared and not _is_due(seen, name, entry) and _is_old(seen, name)
    ]
    if idle and not force and not seen.has_work("clock"):
        await engine.store.run(lambda tx: tx.run("note_idle", items=sorted(idle), now=tx.now))


def _is_old(seen: Look, name: str) -> bool:
    job = seen.jobs.get(name)
    return job is None or (job["last_run_at"] or 0.0) <= seen.now - IDLE_SEC


async def _do(turn: Round, name: str, entry: Entry, period: float, *, force: bool) -> dict[str, int] | None:
    total = await _to_the_end(turn.engine, name, entry, period, force=force)
    if total is None or entry.after is None:
        return total
    if entry.long and turn.beside is not None:
        turn.beside.start(turn.engine, name, entry.after)
        return None
    later = await _afterwards(turn.engine, name, entry.after)
    return {key: total.get(key, 0) + later.get(key, 0) for key in [*total, *later]}


async def _to_the_end(engine: Engine, name: str, entry: Entry, period: float, *, force: bool) -> dict[str, int] | None:
    """One job, batch after batch; None where it is not due, or another process is at it."""
    total: dict[str, int] | None = None
    for _ in range(MOST_BATCHES):
        again = force or entry.prompt or bool(total)
        turn = functools.partial(_turn, engine=engine, name=name, entry=entry, period=period, force=again)
        counts = await engine.store.run(turn)
        if counts is None:
            break
        total = total or {}
        for key, value in counts.items():
            total[key] = total.get(key, 0) + value
        if sum(value for key, value in counts.items() if key not in NO_WORK) < duties.BATCH:
            break
    return total


async def _afterwards(engine: Engine, name: str, after: After) -> dict[str, int]:
    """What fails outside of the database keeps no other job from its turn."""
    try:
        return await after(engine)
    except ShiftworkError as error:
        log.warning("%s waits: %s", name, error)
        return {}


async def _turn(
    tx: Tx, engine: Engine, name: str, entry: Entry, period: float, *, force: bool
) -> dict[str, int] | None:
    """One batch, if it is due and no other process is at it. The row's lock is the election."""
    row = await tx.one("duty_row", name=name)
    if row is None:
        await tx.run("add_duty", name=name, due_at=tx.now)
        row = await tx.one("duty_row", name=name)
    if row is None or not (force or is_due(row, tx.now, period)):
        return None
    began = time.perf_counter()
    counts = await entry.run(tx, engine)
    if counts is None:
        return None
    await tx.run(
        "finish_duty",
        name=name,
        due_at=tx.now + (max(period, IDLE_SEC) if counts is NOWHERE else period),
        now=tx.now,
        took_sec=time.perf_counter() - began,
        counts=msgspec.json.encode(counts).decode(),
    )
    return counts


# -- for ever ----------------------------------------------------------------------------------------------------


class Looks:
    """Looks for ever, and hands what it saw last to the loops that run the jobs."""

    def __init__(self, engine: Engine, complaints: Complaints) -> None:
        self._engine = engine
        self._complaints = complaints
        self._seen: Look | None = None
        self._news = asyncio.Condition()

    async def look_for_ever(self) -> None:
        hearing = self._engine.store.hearing
        hearing.begin()
        try:
            while True:
                await self._look()
                await asyncio.sleep(self._pause())
        finally:
            hearing.end()

    async def _look(self) -> None:
        began = time.perf_counter()
        try:
            seen = await look(self._engine)
        except Exception as error:  # noqa: BLE001  # whatever it is, the next look may do
            self._complaints.hear("maintenance cannot look", error)
            return
        self._complaints.forget("maintenance cannot look")
        self._engine.store.hearing.heard(time.perf_counter() - began)
        async with self._news:
            self._seen = seen
            self._news.notify_all()

    def _pause(self) -> float:
        """Until the next look; sooner where something waits for a moment."""
        moment = self._seen and self._seen.next_moment(PROMPT)
        if not moment:
            return TICK_SEC
        return min(TICK_SEC, max(LEAST_SEC, moment - self._engine.store.now()))

    async def after(self, seen: Look | None) -> Look:
        """The newest look, once there is another than this."""
        async with self._news:
            while self._seen is None or self._seen is seen:
                await self._news.wait()
            return self._seen


PROMPT = {name for name, entry in DUTIES.items() if entry.prompt}


async def run_for_ever(engine: Engine) -> None:
    """Look and run what is due, until cancelled. A job that fails is logged and tried again."""
    turn = Round(engine, Beside(), Complaints())
    looks, pulse = Looks(engine, turn.complaints or Complaints()), Pulse(engine)
    loops = [looks.look_for_ever(), pulse.beat_for_ever(), _run_for_ever(turn, looks, slow=False)]
    tasks = [asyncio.ensure_future(loop) for loop in [*loops, _run_for_ever(turn, looks, slow=True)]]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            if not task.cancelling():  # those that end already may take leave
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if turn.beside is not None:
            await turn.beside.end()


async def _run_for_ever(turn: Round, looks: Looks, *, slow: bool) -> None:
    """The jobs that recover work, or those that take long; neither waits for the other."""
    assert turn.complaints is not None
    who = "slow maintenance waits" if slow else "maintenance waits"
    seen: Look | None = None
    while True:
        seen = await looks.after(seen)
        jobs = {name: entry for name, entry in DUTIES.items() if entry.slow is slow}
        try:
            await _run(turn, seen, jobs)
            turn.complaints.forget(who)
        except Exception as error:  # noqa: BLE001  # whatever it is, the next round may do
            turn.complaints.hear(who, error)
