"""Triggers that wait for the queue's own events: those of a stretch of the log that fit, and their firing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.core import ids
from shiftwork.core.trigger import DagEnds, Firing, Happens
from shiftwork.policy import occasion
from shiftwork.queue import read
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.triggers import firing
from shiftwork.queue.triggers.firing import Armed, Occasion, armed
from shiftwork.store.store import Row, Tx

_ENDS = {"dag_completed": "completed", "dag_failed": "failed", "dag_cancelled": "cancelled"}


class Follower(NamedTuple):
    """A trigger that waits for events, and the last one before it began to."""

    trigger: Armed
    after: int


class Hit(NamedTuple):
    """An event that a trigger waits for."""

    trigger: Armed
    occasion: Occasion


async def followers(tx: Tx) -> tuple[list[Follower], int]:
    """All of them, and how far the log was read."""
    rows = await tx.all("following_triggers")
    cursor = await tx.one("read_trigger_cursor") if rows else None
    return [Follower(armed(row), row["after_seq"]) for row in rows], 0 if cursor is None else int(cursor["seq"])


async def hits(tx: Tx, following: Sequence[Follower], rows: Sequence[Row]) -> list[Hit]:
    """Of these events those that some trigger waits for, in their order."""
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
        Hit(trigger, Occasion(f"event:{row['seq']}", facts, depth=depths.get(row["dag_id"], 0)))
        for trigger, row, facts in found
    ]


def _fitting(trigger: Armed, row: Row, titles: dict[str, str | None]) -> dict[str, Any] | None:
    """What happened, as the trigger's parameters see it; None where it waits for something else."""
    if isinstance(trigger.on, DagEnds):
        end = _ENDS.get(row["verb"])
        if end is None or not occasion.is_end(trigger.on, titles.get(row["dag_id"]), end):
            return None
        dag = {"dag_id": ids.show_dag(row["dag_id"]), "title": titles.get(row["dag_id"]), "status": end}
        return {"trigger": trigger.name, **dag}
    assert isinstance(trigger.on, Happens)
    facts = {"trigger": trigger.name, **msgspec.to_builtins(read.event(row))}
    return facts if occasion.is_event(trigger.on, facts) else None


async def _titles(tx: Tx, rows: Sequence[Row]) -> dict[str, str | None]:
    ended = sorted({row["dag_id"] for row in rows if row["verb"] in _ENDS})
    found = await tx.all("dag_titles", items=[(id_,) for id_ in ended]) if ended else []
    return {row["id"]: row["title"] for row in found}


async def _depths(tx: Tx, rows: Sequence[Row]) -> dict[str, int]:
    dags = sorted({row["dag_id"] for row in rows if row["dag_id"] is not None})
    found = await tx.all("firing_depths", items=[(id_,) for id_ in dags]) if dags else []
    return {row["dag_id"]: row["depth"] + 1 for row in found}


async def fire_hit(tx: Tx, engine: Engine, hit: Hit) -> Firing | None:
    """Fire for an event, unless the trigger was removed or paused meanwhile."""
    if await _is_off(tx, hit.trigger):
        return None
    caller = Caller(hit.trigger.actor, workspace=hit.trigger.workspace)
    return await firing.fire(tx, engine, caller, hit.trigger, hit.occasion)


async def skip_hit(tx: Tx, engine: Engine, hit: Hit, why: str) -> None:
    """The same where what it creates cannot be submitted."""
    if not await _is_off(tx, hit.trigger):
        caller = Caller(hit.trigger.actor, workspace=hit.trigger.workspace)
        await firing.skip(tx, engine, caller, hit.trigger, hit.occasion, why)


async def _is_off(tx: Tx, trigger: Armed) -> bool:
    row = await tx.one("lock_trigger_by_id", id=trigger.id)
    return row is None or row["paused_at"] is not None
