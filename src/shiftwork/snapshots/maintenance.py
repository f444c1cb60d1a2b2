"""Takes periodic snapshots in processes that have a folder for them, and alerts on failure."""

from __future__ import annotations

import functools

from shiftwork.engine.engine import Caller, Engine
from shiftwork.model.errors import ShiftworkError
from shiftwork.settings.model import Settings
from shiftwork.snapshots import operations as snapshots
from shiftwork.snapshots.snapshot_folder import name_at
from shiftwork.store.store import Tx

Counts = dict[str, int]
CALLER = Caller("maintenance:snapshot")


async def is_ours(tx: Tx, engine: Engine) -> Counts | None:
    """None if this process takes no snapshots, so that another one runs the job."""
    return {} if are_ours(engine, (await engine.settings_cache.load(tx, "default")).settings()) else None


def are_ours(engine: Engine, settings: Settings) -> bool:
    """Whether this process takes snapshots; `settings` are those of the default workspace."""
    return engine.snapshots is not None and (engine.snapshots.named or settings.snapshots.wanted)


async def take(engine: Engine) -> Counts:
    """Take a snapshot, and remove the oldest ones beyond the limit."""
    failure: ShiftworkError | None = None
    try:
        await _take(engine)
    except ShiftworkError as error:
        failure = error
    await engine.store.run(functools.partial(snapshots.record_result, engine=engine, caller=CALLER, failure=failure))
    return {"taken": 1} if failure is None else {"failed": 1}


async def _take(engine: Engine) -> None:
    folder, now = snapshots.folder_of(engine), engine.store.now()
    await folder.take(engine.store.url, name_at(now), now)
    await snapshots.prune(engine, now)
