"""A snapshot now and then, by a process that has a folder for them. Where it fails, somebody is told."""

from __future__ import annotations

import functools

from shiftwork.copying.folder import name_at
from shiftwork.core.errors import ShiftworkError
from shiftwork.core.settings import Settings
from shiftwork.queue import snapshots
from shiftwork.queue.engine import Caller, Engine
from shiftwork.store.store import Tx

Counts = dict[str, int]
CALLER = Caller("duty:snapshot")


async def is_ours(tx: Tx, engine: Engine) -> Counts | None:
    """None where this process takes no snapshots, and leaves the turn to one that does."""
    return {} if are_ours(engine, (await engine.book.of(tx, "default")).settings()) else None


def are_ours(engine: Engine, settings: Settings) -> bool:
    """Whether this process takes snapshots; `settings` are those of the default workspace."""
    return engine.snapshots is not None and (engine.snapshots.named or settings.snapshots.wanted)


async def take(engine: Engine) -> Counts:
    """Take a snapshot, and remove those that are too many."""
    failure: ShiftworkError | None = None
    try:
        await _take(engine)
    except ShiftworkError as error:
        failure = error
    await engine.store.run(functools.partial(snapshots.judge, engine=engine, caller=CALLER, failure=failure))
    return {"taken": 1} if failure is None else {"failed": 1}


async def _take(engine: Engine) -> None:
    folder, now = snapshots.folder_of(engine), engine.store.now()
    await folder.take(engine.store.url, name_at(now), now)
    await snapshots.prune(engine, now)
