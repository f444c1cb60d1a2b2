"""Maintenance jobs for observability: count the log, store metrics, and raise alerts.

Each workspace has its own transaction, so that none delays the others.
"""

from __future__ import annotations

import functools

from shiftwork.engine.engine import Engine
from shiftwork.maintenance.model import next_workspaces
from shiftwork.observe import kept_counts, meters, metrics, watchdog
from shiftwork.store.store import Store, Tx

Counts = dict[str, int]
MAX_STRETCHES = 200
"""Stretches of the log counted per run, before other maintenance jobs continue."""


async def mark_seen(tx: Tx, _engine: Engine) -> Counts:
    """Record up to where the log is complete."""
    await meters.mark_seen(tx)
    return {}


async def measure(engine: Engine) -> Counts:
    """Count the complete part, and store each workspace's current metrics."""
    counted = await count(engine.store)
    names = [row["name"] for row in await engine.store.read(lambda tx: tx.all("used_workspaces"))]
    for workspace in next_workspaces(names, engine.measured_to):
        await _measure(engine, workspace)
        engine.measured_to = workspace
    return {"counted": counted} if counted else {}


async def count(store: Store) -> int:
    """Count stretch by stretch; returns how much of the log it was."""
    total = 0
    for _ in range(MAX_STRETCHES):
        found = await store.read(meters.count_on)
        kept = await store.run(functools.partial(meters.keep, counted=found))
        total += kept
        if kept < meters.STRETCH:
            break
    return total


async def _measure(engine: Engine, workspace: str) -> None:
    found, _ = await engine.store.read(lambda tx: metrics.read(tx, engine, workspace, None))
    settings = (await engine.settings_cache.get(engine.store, workspace)).settings()
    period = settings.maintenance.metrics_sec
    await engine.store.run(lambda tx: metrics.keep(tx, workspace, found, period))


async def elect_counter(_tx: Tx, _engine: Engine) -> Counts:
    """One process at a time counts."""
    return {}


async def count_tasks(engine: Engine) -> Counts:
    """Add what ended to the sums of finished tasks; read all of them only if the sums are unknown."""
    counted = await kept_counts.advance(engine.store)
    await kept_counts.make_whole(engine.store)
    return {"counted": counted} if counted else {}


async def check_store(tx: Tx, engine: Engine) -> Counts:
    """Check what the database and the maintenance jobs report."""
    if await tx.one("route_left", workspace="default") is not None:
        return {}  # its alerts are in another database now
    raised = await watchdog.check_store(tx, engine, "default")
    return {"raised": raised} if raised else {}


async def check_workspaces(engine: Engine) -> Counts:
    """Check each workspace separately, so that a failure does not prevent the others."""
    names = [row["name"] for row in await engine.store.read(lambda tx: tx.all("used_workspaces"))]
    raised = 0
    for workspace in next_workspaces(names, engine.watched_to):
        raised += await engine.store.run(
            functools.partial(watchdog.check_workspace_conditions, engine=engine, workspace=workspace)
        )
        await engine.store.run(functools.partial(watchdog.check_capacity, engine=engine, workspace=workspace))
        engine.watched_to = workspace
    return {"raised": raised} if raised else {}
