"""Metrics: what the log tells is counted, and what is measured then is kept. Read apart, so that no writer waits."""

from __future__ import annotations

import functools

from shiftwork.duties import turns
from shiftwork.queue.engine import Engine
from shiftwork.queue.observation import meters, metrics
from shiftwork.store.store import Store, Tx

Counts = dict[str, int]
MOST_STRETCHES = 200
"""Of the log in one turn, before the other duties get theirs."""


async def see(tx: Tx, _engine: Engine) -> Counts:
    """Note up to where the log is whole."""
    await meters.see(tx)
    return {}


async def measure(engine: Engine) -> Counts:
    """Count what is whole, and keep what each workspace measures now."""
    counted = await count(engine.store)
    names = [row["name"] for row in await engine.store.read(lambda tx: tx.all("used_workspaces"))]
    for workspace in turns.next_of(names, engine.measured_to):
        await _measure(engine, workspace)
        engine.measured_to = workspace
    return {"counted": counted} if counted else {}


async def count(store: Store) -> int:
    """Stretch by stretch; answers how much of the log it was."""
    total = 0
    for _ in range(MOST_STRETCHES):
        found = await store.read(meters.count_on)
        kept = await store.run(functools.partial(meters.keep, counted=found))
        if not kept:
            break
        total += kept
    return total


async def _measure(engine: Engine, workspace: str) -> None:
    found, _ = await engine.store.read(lambda tx: metrics.read(tx, engine, workspace, None))
    settings = (await engine.book.get(engine.store, workspace)).settings()
    period = settings.maintenance.metrics_sec
    await engine.store.run(lambda tx: metrics.keep(tx, workspace, found, period))
