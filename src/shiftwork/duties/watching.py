"""Looks whether the queue is as it should be, and raises alerts about what is not: a transaction for each workspace."""

from __future__ import annotations

import functools

from shiftwork.duties import turns
from shiftwork.queue.engine import Engine
from shiftwork.queue.observation import watch
from shiftwork.store.store import Tx

Counts = dict[str, int]


async def look_at_store(tx: Tx, engine: Engine) -> Counts:
    """What the database and the maintenance jobs themselves say."""
    raised = await watch.look_at_store(tx, engine, "default")
    return {"raised": raised} if raised else {}


async def look_at_workspaces(engine: Engine) -> Counts:
    """Each by itself, so that one cannot keep the others from being looked at."""
    names = [row["name"] for row in await engine.store.read(lambda tx: tx.all("used_workspaces"))]
    raised = 0
    for workspace in turns.next_of(names, engine.watched_to):
        raised += await engine.store.run(functools.partial(watch.look, engine=engine, workspace=workspace))
        await engine.store.run(functools.partial(watch.look_at_room, engine=engine, workspace=workspace))
        engine.watched_to = workspace
    return {"raised": raised} if raised else {}
