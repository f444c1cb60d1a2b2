"""Fires triggers that are due by time or event.

The job elects the process; each firing is then a separate transaction, so that a failure undoes no other firing.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from shiftwork.engine import event_log, read
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.maintenance.model import BATCH, Counts
from shiftwork.model import ids
from shiftwork.model.errors import ConflictError, InputError
from shiftwork.store.store import Row, Tx
from shiftwork.triggers import firing, policy, schedule_policy
from shiftwork.triggers.firing import ArmedTrigger, FiringCause, armed_trigger
from shiftwork.triggers.model import Cron, DagEnds, Firing, Happens
from shiftwork.triggers.operations import next_times, tick_facts
from shiftwork.triggers.schedule_policy import Due

T = TypeVar("T")
AT_ONCE = 20
"""Concurrent firings: SQLite commits them together, PostgreSQL in parallel."""
MAX_BATCHES = 20
"""The most batches per run, since other maintenance jobs wait meanwhile."""
_ENDS = {"dag_completed": "completed", "dag_failed": "failed", "dag_cancelled": "cancelled"}


class _DueSchedule(NamedTuple):
    """A locked schedule and its due ticks: one transaction fires them and advances the schedule."""

    trigger: ArmedTrigger
    on: Cron
    due: Due
    first: float


class Follower(NamedTuple):
    """A trigger that waits for events, and the last event before it was saved."""

    trigger: ArmedTrigger
    after: int


class EventMatch(NamedTuple):
    """An event that matches a trigger."""

    trigger: ArmedTrigger
    occasion: FiringCause


async def elect(tx: Tx, engine: Engine) -> Counts:  # noqa: ARG001  # every maintenance job gets both
    """Nothing to do inside the election itself."""
    return {}


async def run(engine: Engine) -> Counts:
    """Fire due schedules, then matching events; returns the counts."""
    counts = {"ticks": await _fire_due(engine), "events": await follow(engine)}
    return {name: count for name, count in counts.items() if count}


async def _fire_due(engine: Engine) -> int:
    """Fire all due schedules, in the order of their times."""
    fired = 0
    for _ in range(MAX_BATCHES):
        due = await engine.store.read(lambda tx: tx.all("due_triggers", now=tx.now, count=BATCH))
        fired += sum(await _run_concurrently([row["id"] for row in due], functools.partial(_fire_schedule, engine)))
        if len(due) < BATCH:
            break
    return fired


async def _fire_schedule(engine: Engine, trigger_id: str) -> int:
    try:
        return await engine.store.run(lambda tx: fire_due(tx, engine, trigger_id))
    except (InputError, ConflictError) as error:
        why = str(error)
        await engine.store.run(lambda tx: skip_due(tx, engine, trigger_id, why))
        return 0


async def fire_due(tx: Tx, engine: Engine, trigger_id: str) -> int:
    """Fire a schedule's due ticks; returns how often it fired, 0 if another process is firing it."""
    turn = await _take(tx, trigger_id)
    if turn is None:
        return 0
    caller = Caller(turn.trigger.actor, workspace=turn.trigger.workspace)
    came = [await firing.fire(tx, engine, caller, turn.trigger, each) for each in _occasions(turn)]
    await _emit_missed(tx, engine, caller, turn)
    await _advance(tx, turn)
    return sum(1 for each in came if each.outcome == "fired")


async def skip_due(tx: Tx, engine: Engine, trigger_id: str, why: str) -> None:
    """Record that a schedule's work cannot be submitted, and advance the schedule."""
    turn = await _take(tx, trigger_id)
    if turn is None:
        return
    caller = Caller(turn.trigger.actor, workspace=turn.trigger.workspace)
    for each in _occasions(turn):
        await firing.skip(tx, engine, caller, turn.trigger, each, why)
    await _advance(tx, turn)


async def _take(tx: Tx, trigger_id: str) -> _DueSchedule | None:
    row = await tx.one("lock_due_trigger", id=trigger_id, now=tx.now)
    if row is None:
        return None
    trigger = armed_trigger(row)
    assert isinstance(trigger.on, Cron)
    until = max(tx.now - schedule_policy.jitter(trigger.on, trigger.id), row["tick_at"])
    return _DueSchedule(trigger, trigger.on, schedule_policy.due(trigger.on, row["tick_at"], until), row["tick_at"])


def _occasions(turn: _DueSchedule) -> list[FiringCause]:
    event_data = {"missed": turn.due.skipped, "more": turn.due.more} if turn.due.skipped else {}
    return [
        FiringCause(f"tick:{schedule_policy.shown(tick)}", tick_facts(turn.trigger.name, tick), data=event_data)
        for tick in turn.due.fire
    ]


async def _emit_missed(tx: Tx, engine: Engine, caller: Caller, turn: _DueSchedule) -> None:
    """Emit a skip for missed ticks that no other event reports."""
    if turn.due.fire or not turn.due.skipped:
        return
    why = f"no server was running at {turn.due.skipped}{' or more' if turn.due.more else ''} of its times"
    came = Firing(turn.trigger.name, f"tick:{schedule_policy.shown(turn.first)}", tx.now, "skipped", why)
    work = UnitOfWork(tx, engine, caller)
    firing.emit(work, turn.trigger, came, {"missed": turn.due.skipped, "more": turn.due.more})
    await work.save_events()


async def _advance(tx: Tx, turn: _DueSchedule) -> None:
    late = schedule_policy.jitter(turn.on, turn.trigger.id)
    tick, at = next_times(turn.on, turn.trigger.id, max(tx.now - late, turn.first))
    await tx.run("advance_trigger", id=turn.trigger.id, tick_at=tick, next_at=at)


async def follow(engine: Engine) -> int:
    """Read the log from the triggers' cursor, and fire matching triggers.

    The cursor moves after the firings: after a crash in between, the same events are read again, and each fires only
    once.
    """
    fired = 0
    for _ in range(MAX_BATCHES):
        found, cursor = await engine.store.read(followers)
        since = max(cursor, min((each.after for each in found), default=0))
        part = await event_log.read(engine.store, since, BATCH) if found else None
        if part is None or part.last == since:
            break
        hits = await engine.store.read(functools.partial(_hits, part.rows))
        fired += sum(await _run_concurrently(hits, functools.partial(fire_match, engine)))
        await engine.store.run(functools.partial(_move_cursor, part.last))
    return fired


async def _hits(rows: Sequence[Row], tx: Tx) -> list[EventMatch]:
    """Match events; reads the triggers again, since one saved meanwhile may wait for these events."""
    found, _ = await followers(tx)
    return await hits(tx, found, rows)


async def _move_cursor(seq: int, tx: Tx) -> None:
    await tx.run("move_trigger_cursor", seq=seq)


async def fire_match(engine: Engine, hit: EventMatch) -> int:
    """Fire a trigger for an event; returns 0 if it fired before or cannot fire."""
    try:
        came = await engine.store.run(lambda tx: fire_hit(tx, engine, hit))
    except (InputError, ConflictError) as error:
        why = str(error)
        await engine.store.run(lambda tx: skip_hit(tx, engine, hit, why))
        return 0
    return 1 if came is not None and came.outcome == "fired" and not came.duplicate else 0


async def followers(tx: Tx) -> tuple[list[Follower], int]:
    """All triggers that wait for events, and the cursor in the log."""
    rows = await tx.all("following_triggers")
    cursor = await tx.one("read_trigger_cursor") if rows else None
    return [Follower(armed_trigger(row), row["after_seq"]) for row in rows], 0 if cursor is None else int(cursor["seq"])


async def hits(tx: Tx, following: Sequence[Follower], rows: Sequence[Row]) -> list[EventMatch]:
    """The events that match a trigger, in order."""
    titles = await _titles(tx, rows) if any(isinstance(each.trigger.on, DagEnds) for each in following) else {}
    found = [
        (each.trigger, row, facts)
        for row in rows
        for each in following
        if row["workspace"] == each.trigger.workspace
        and row["seq"] > each.after
        and (facts := _fitting(each.trigger, row, titles)) is not None
    ]
    depths = await _depths(tx, [row for _, row, _ in found])
    return [
        EventMatch(trigger, FiringCause(f"event:{row['seq']}", facts, depth=depths.get(row["dag_id"], 0)))
        for trigger, row, facts in found
    ]


def _fitting(trigger: ArmedTrigger, row: Row, titles: dict[str, str | None]) -> dict[str, Any] | None:
    """The facts of an event for the trigger's parameters; None if the event does not match."""
    if isinstance(trigger.on, DagEnds):
        end = _ENDS.get(row["verb"])
        if end is None or not policy.is_end(trigger.on, titles.get(row["dag_id"]), end):
            return None
        dag = {"dag_id": ids.show_dag(row["dag_id"]), "title": titles.get(row["dag_id"]), "status": end}
        return {"trigger": trigger.name, **dag}
    assert isinstance(trigger.on, Happens)
    facts = {"trigger": trigger.name, **msgspec.to_builtins(read.event(row))}
    return facts if policy.is_event(trigger.on, facts) else None


async def _titles(tx: Tx, rows: Sequence[Row]) -> dict[str, str | None]:
    ended = sorted({row["dag_id"] for row in rows if row["verb"] in _ENDS})
    found = await tx.all("dag_titles", items=[(id_,) for id_ in ended]) if ended else []
    return {row["id"]: row["title"] for row in found}


async def _depths(tx: Tx, rows: Sequence[Row]) -> dict[str, int]:
    dags = sorted({row["dag_id"] for row in rows if row["dag_id"] is not None})
    found = await tx.all("firing_depths", items=[(id_,) for id_ in dags]) if dags else []
    return {row["dag_id"]: row["depth"] + 1 for row in found}


async def fire_hit(tx: Tx, engine: Engine, hit: EventMatch) -> Firing | None:
    """Fire for an event, unless the trigger was removed or paused meanwhile."""
    if await _is_off(tx, hit.trigger):
        return None
    caller = Caller(hit.trigger.actor, workspace=hit.trigger.workspace)
    return await firing.fire(tx, engine, caller, hit.trigger, hit.occasion)


async def skip_hit(tx: Tx, engine: Engine, hit: EventMatch, why: str) -> None:
    """Record that the work for an event cannot be submitted."""
    if not await _is_off(tx, hit.trigger):
        caller = Caller(hit.trigger.actor, workspace=hit.trigger.workspace)
        await firing.skip(tx, engine, caller, hit.trigger, hit.occasion, why)


async def _is_off(tx: Tx, trigger: ArmedTrigger) -> bool:
    row = await tx.one("lock_trigger_by_id", id=trigger.id)
    return row is None or row["paused_at"] is not None


async def _run_concurrently(items: Sequence[T], action: Callable[[T], Awaitable[int]]) -> list[int]:
    done: list[int] = []
    for start in range(0, len(items), AT_ONCE):
        done += await asyncio.gather(*(action(item) for item in items[start : start + AT_ONCE]))
    return done
