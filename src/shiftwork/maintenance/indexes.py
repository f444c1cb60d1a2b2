"""Rebuilds indexes that have outgrown their tables, on PostgreSQL."""

from __future__ import annotations

from shiftwork.engine.engine import Engine
from shiftwork.store.store import Tx

PERIOD_SEC = 600.0


async def elect(tx: Tx, engine: Engine) -> dict[str, int]:  # noqa: ARG001  # every job gets both
    """Elect one process per period."""
    return {}


async def rebuild(engine: Engine) -> dict[str, int]:
    """Runs outside a transaction: an index is rebuilt while in use. SQLite's indexes need no rebuild."""
    if engine.store.one_writer:
        return {}
    from shiftwork.store.postgres_indexes import rebuild_grown  # noqa: PLC0415  # needs the driver, an extra

    rebuilt = await rebuild_grown(engine.store)
    return {"rebuilt": len(rebuilt)} if rebuilt else {}
