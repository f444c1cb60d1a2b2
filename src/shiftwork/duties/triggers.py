"""Fires the triggers whose time or event has come.

Its turn elects the process; each firing is a transaction of its own after that, so that one that fails undoes no other.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shiftwork.core.errors import ConflictError, InputError
from shiftwork.duties.duties import BATCH, Counts
from shiftwork.queue import log
from shiftwork.queue.engine import Engine
from shiftwork.queue.triggers import following, schedules
from shiftwork.queue.triggers.following import Hit
from shiftwork.store.store import Row, Tx

T = TypeVar("T")
AT_ONCE = 20
"""Firings under way together: SQLite commits them together, PostgreSQL side by side."""
MOST_BATCHES = 20
"""In one turn: other duties wait meanwhile."""


async def elect(tx: Tx, engine: Engine) -> Counts:  # noqa: ARG001  # every duty is given both
    """Nothing to do inside the turn itself."""
    return {}


async def run(engine: Engine) -> Counts:
    """Schedules first, then events; what was fired."""
    counts = {"ticks": await _fire_due(engine), "events": await _follow(engine)}
    return {name: count for name, count in counts.items() if count}


async def _fire_due(engine: Engine) -> int:
    """Every schedule that is due, in the order of their times."""
    fired = 0
    for _ in range(MOST_BATCHES):
        due = await engine.store.read(lambda tx: tx.all("due_triggers", now=tx.now, count=BATCH))
        fired += sum(await _some_at_once([row["id"] for row in due], functools.partial(_fire_schedule, engine)))
        if len(due) < BATCH:
            break
    return fired


async def _fire_schedule(engine: Engine, trigger_id: str) -> int:
    try:
        return await engine.store.run(lambda tx: schedules.fire_due(tx, engine, trigger_id))
    except (InputError, ConflictError) as error:
        why = str(error)
        await engine.store.run(lambda tx: schedules.skip_due(tx, engine, trigger_id, why))
        return 0


async def _follow(engine: Engine) -> int:
    """Read the log on from where triggers have read it, and fire for what they wait for.

    The cursor moves after the firings: whoever dies between goes over the same events again, each of which fires once.
    """
    fired = 0
    for _ in range(MOST_BATCHES):
        found, cursor = await engine.store.read(following.followers)
        since = max(cursor, min((each.after for each in found), default=0))
        part = await log.read(engine.store, since, BATCH) if found else None
        if part is None or part.last == since:
            break
        hits = await engine.store.read(functools.partial(_hits, part.rows))
        fired += sum(await _some_at_once(hits, functools.partial(_fire_hit, engine)))
        await engine.store.run(functools.partial(_move_cursor, part.last))
    return fired


async def _hits(rows: Sequence[Row], tx: Tx) -> list[Hit]:
    """Asks anew who follows: a trigger that was saved since may wait for these events, which are read only once."""
    found, _ = await following.followers(tx)
    return await following.hits(tx, found, rows)


async def _move_cursor(seq: int, tx: Tx) -> None:
    await tx.run("move_trigger_cursor", seq=seq)


async def _fire_hit(engine: Engine, hit: Hit) -> int:
    try:
        came = await engine.store.run(lambda tx: following.fire_hit(tx, engine, hit))
    except (InputError, ConflictError) as error:
        why = str(error)
        await engine.store.run(lambda tx: following.skip_hit(tx, engine, hit, why))
        return 0
    return 1 if came is not None and came.outcome == "fired" and not came.duplicate else 0


async def _some_at_once(items: Sequence[T], action: Callable[[T], Awaitable[int]]) -> list[int]:
    done: list[int] = []
    for start in range(0, len(items), AT_ONCE):
        done += await asyncio.gather(*(action(item) for item in items[start : start + AT_ONCE]))
    return done
