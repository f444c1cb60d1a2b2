"""Schedules that are due: each fires for its ticks and moves on to the next, in one transaction under a lock."""

from __future__ import annotations

from typing import NamedTuple

from shiftwork.core.trigger import Cron, Firing
from shiftwork.policy import schedule
from shiftwork.policy.schedule import Due
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.triggers import firing
from shiftwork.queue.triggers.firing import Armed, Occasion, armed
from shiftwork.queue.triggers.triggers import next_times, tick_facts
from shiftwork.queue.work import Work
from shiftwork.store.store import Tx


class _Turn(NamedTuple):
    """A schedule that is due, locked, and what to do about its ticks."""

    trigger: Armed
    on: Cron
    due: Due
    first: float


async def fire_due(tx: Tx, engine: Engine, trigger_id: str) -> int:
    """Fire a schedule for what is due of it; how often it fired. Where another process is at it, not at all."""
    turn = await _take(tx, trigger_id)
    if turn is None:
        return 0
    caller = Caller(turn.trigger.actor, workspace=turn.trigger.workspace)
    came = [await firing.fire(tx, engine, caller, turn.trigger, each) for each in _occasions(turn)]
    await _tell_missed(tx, engine, caller, turn)
    await _advance(tx, turn)
    return sum(1 for each in came if each.outcome == "fired")


async def skip_due(tx: Tx, engine: Engine, trigger_id: str, why: str) -> None:
    """The same where what it creates cannot be submitted: that is told, and it moves on."""
    turn = await _take(tx, trigger_id)
    if turn is None:
        return
    caller = Caller(turn.trigger.actor, workspace=turn.trigger.workspace)
    for each in _occasions(turn):
        await firing.skip(tx, engine, caller, turn.trigger, each, why)
    await _advance(tx, turn)


async def _take(tx: Tx, trigger_id: str) -> _Turn | None:
    row = await tx.one("lock_due_trigger", id=trigger_id, now=tx.now)
    if row is None:
        return None
    trigger = armed(row)
    assert isinstance(trigger.on, Cron)
    until = max(tx.now - schedule.jitter(trigger.on, trigger.id), row["tick_at"])
    return _Turn(trigger, trigger.on, schedule.due(trigger.on, row["tick_at"], until), row["tick_at"])


def _occasions(turn: _Turn) -> list[Occasion]:
    told = {"missed": turn.due.skipped, "more": turn.due.more} if turn.due.skipped else {}
    return [
        Occasion(f"tick:{schedule.shown(tick)}", tick_facts(turn.trigger.name, tick), told=told)
        for tick in turn.due.fire
    ]


async def _tell_missed(tx: Tx, engine: Engine, caller: Caller, turn: _Turn) -> None:
    """Ticks that nothing is fired for, where no other event tells of them."""
    if turn.due.fire or not turn.due.skipped:
        return
    why = f"no server ran at {turn.due.skipped}{' or more' if turn.due.more else ''} of its times"
    came = Firing(turn.trigger.name, f"tick:{schedule.shown(turn.first)}", tx.now, "skipped", why)
    work = Work(tx, engine, caller)
    firing.tell(work, turn.trigger, came, {"missed": turn.due.skipped, "more": turn.due.more})
    await work.save_events()


async def _advance(tx: Tx, turn: _Turn) -> None:
    late = schedule.jitter(turn.on, turn.trigger.id)
    tick, at = next_times(turn.on, turn.trigger.id, max(tx.now - late, turn.first))
    await tx.run("advance_trigger", id=turn.trigger.id, tick_at=tick, next_at=at)
