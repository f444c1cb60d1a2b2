"""Runs each duty when it is due, once for the whole fleet: whoever locks a duty's row does it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from shiftwork.core.errors import OperationTimeout, ShiftworkError, StoreError
from shiftwork.core.settings import Maintenance, Settings
from shiftwork.duties import (
    artifacts,
    deadlines,
    duties,
    measuring,
    notifications,
    presence,
    protection,
    snapshots,
    triggers,
    waiting,
)
from shiftwork.queue.engine import Engine
from shiftwork.queue.fairness import serials, yielding
from shiftwork.queue.money import budgets
from shiftwork.store.store import Tx

log = logging.getLogger("shiftwork.duties")
TICK_SEC = 0.25
MOST_BATCHES = 200
"""Full batches of one duty in a row before the others get their turn."""

Duty = Callable[[Tx, Engine], Awaitable[dict[str, int] | None]]
"""What it did; None where this process leaves it to others."""

After = Callable[[Engine], Awaitable[dict[str, int]]]


class Entry(NamedTuple):
    run: Duty
    period: Callable[[Maintenance], float]
    after: After | None = None
    """What is done after its turn, outside of its transaction."""
    long: bool = False
    """What is done then takes so long that no other duty waits for it."""


DUTIES: dict[str, Entry] = {
    "presence": Entry(presence.hand_back, lambda m: m.presence_sec),
    "health": Entry(duties.health, lambda m: m.reclaim_sec),
    "reclaim": Entry(duties.reclaim, lambda m: m.reclaim_sec),
    "promote": Entry(duties.promote, lambda m: m.retry_promoter_sec),
    "waits": Entry(waiting.waits, lambda m: m.retry_promoter_sec),
    "approvals": Entry(waiting.approvals, lambda m: m.retry_promoter_sec),
    "gates": Entry(protection.open_gates, lambda m: m.gates_sec),
    "rerank": Entry(duties.rerank, lambda m: m.rerank_sec),
    "deadlines": Entry(deadlines.deadlines, lambda m: m.rerank_sec),
    "serials": Entry(serials.tend, lambda m: m.retry_promoter_sec),
    "preempt": Entry(yielding.look, lambda m: m.rerank_sec),
    "dependencies": Entry(duties.missing_dependencies, lambda m: m.dependencies_sec),
    "budgets": Entry(budgets.tend, lambda m: m.budgets_sec),
    "stale": Entry(duties.stale, lambda m: m.stale_sec),
    "displaced": Entry(duties.displaced, lambda m: m.dead_letter_sec),
    "alerts": Entry(duties.alerts, lambda m: m.metrics_sec),
    "metrics": Entry(measuring.see, lambda m: m.metrics_sec, measuring.measure),
    "notifications": Entry(notifications.forget, lambda m: m.notifications_sec, notifications.fill),
    "triggers": Entry(triggers.elect, lambda m: m.triggers_sec, triggers.run),
    "retention": Entry(duties.retention, lambda m: m.retention_sec),
    "artifacts": Entry(artifacts.collect, lambda m: m.retention_sec, artifacts.remove),
    "snapshot": Entry(snapshots.is_ours, lambda m: m.snapshot_sec, snapshots.take, long=True),
}


class Beside:
    """What goes on beside the other duties, one of each kind at most."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[dict[str, int]]] = {}

    def start(self, engine: Engine, name: str, after: After) -> None:
        earlier = self._under_way.get(name)
        if earlier is None or earlier.done():
            self._under_way[name] = asyncio.create_task(_afterwards(engine, name, after))
        else:
            log.warning("duty %s takes longer than its period", name)

    async def end(self) -> None:
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)


class Complaints:
    """What keeps duties from being done, each said once and not four times a second."""

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
    """Run every duty that is due now (or all of them), each to the end of its work; what each did.

    What takes long is only begun where it may go on `beside`. Where somebody hears `complaints`, a duty that fails
    keeps no other from its turn, unless it is the store that is away.
    """
    done: dict[str, dict[str, int]] = {}
    resting = frozenset[str]() if force else await engine.store.read(_resting)
    for name, entry in DUTIES.items():
        if name in resting:
            continue
        try:
            total = await _do(engine, name, entry, force=force, beside=beside)
        except Exception as error:
            if complaints is None or isinstance(error, StoreError | OperationTimeout):
                raise
            complaints.hear(f"duty {name} waits", error)
            continue
        if complaints is not None:
            complaints.forget(f"duty {name} waits")
        if total:
            done[name] = total
    return done


async def _do(engine: Engine, name: str, entry: Entry, *, force: bool, beside: Beside | None) -> dict[str, int] | None:
    total = await _to_the_end(engine, name, entry, force=force)
    if total is None or entry.after is None:
        return total
    if entry.long and beside is not None:
        beside.start(engine, name, entry.after)
        return None
    return total | await _afterwards(engine, name, entry.after)


async def _resting(tx: Tx) -> frozenset[str]:
    """Duties that are not due: one look at all, instead of a transaction for each, by every process at every tick."""
    return frozenset(row["name"] for row in await tx.all("list_duties") if row["due_at"] > tx.now)


async def _to_the_end(engine: Engine, name: str, entry: Entry, *, force: bool) -> dict[str, int] | None:
    """One duty, batch after batch; None where it is not due, or another process is at it."""
    total: dict[str, int] | None = None
    for _ in range(MOST_BATCHES):
        counts = await _batch(engine, name, entry, force=force or bool(total))
        if counts is None:
            break
        total = total or {}
        for key, value in counts.items():
            total[key] = total.get(key, 0) + value
        if sum(counts.values()) < duties.BATCH:
            break
    return total


async def _afterwards(engine: Engine, name: str, after: After) -> dict[str, int]:
    """What fails outside of the database keeps no other duty from its turn."""
    try:
        return await after(engine)
    except ShiftworkError as error:
        log.warning("duty %s waits: %s", name, error)
        return {}


async def _batch(engine: Engine, name: str, entry: Entry, *, force: bool) -> dict[str, int] | None:
    return await engine.store.run(lambda tx: _turn(tx, engine, name, entry, force=force))


async def _turn(tx: Tx, engine: Engine, name: str, entry: Entry, *, force: bool) -> dict[str, int] | None:
    """One batch, if it is due and nobody else is at it. The row's lock is the election."""
    row = await tx.one("duty_row", name=name)
    if row is None:
        await tx.run("add_duty", name=name, due_at=tx.now)
        row = await tx.one("duty_row", name=name)
    if row is None or (row["due_at"] > tx.now and not force):
        return None
    settings: Settings = (await engine.book.of(tx, "default")).settings()
    began = time.perf_counter()
    counts = await entry.run(tx, engine)
    if counts is None:
        return None
    await tx.run(
        "finish_duty",
        name=name,
        due_at=tx.now + entry.period(settings.maintenance),
        now=tx.now,
        took_sec=time.perf_counter() - began,
        counts=msgspec.json.encode(counts).decode(),
    )
    return counts


async def run_for_ever(engine: Engine) -> None:
    """The dull loop. A duty that fails is logged and tried again at the next tick."""
    beside = Beside()
    try:
        await _run_for_ever(engine, beside)
    finally:
        await beside.end()


async def _run_for_ever(engine: Engine, beside: Beside) -> None:
    last, complaints = time.monotonic(), Complaints()
    while True:
        late = time.monotonic() - last
        if late > 3 * max(TICK_SEC, 1.0):
            note_absence(engine, late)
        last = time.monotonic()
        try:
            await run_once(engine, beside=beside, complaints=complaints)
            complaints.forget("duties wait")
        except Exception as error:  # noqa: BLE001  # whatever it is, the next round may do
            complaints.hear("duties wait", error)
        await asyncio.sleep(TICK_SEC)


def note_absence(engine: Engine, late: float) -> None:
    """This process slept (a suspended laptop, a stopped process): others may not have been able to beat either."""
    log.warning("duties were away for %.0f s; reclaim by silence rests", late)
    wakes: Any = getattr(engine.store, "wakes", None)
    if wakes is not None:
        wakes.unsettled_since = engine.store.now()
