"""Closes the instructions of tasks that have ended, so that heartbeats need not look for them."""

from __future__ import annotations

from shiftwork.engine.engine import Engine
from shiftwork.store.store import Tx

BATCH = 500


async def close_ended(tx: Tx, _engine: Engine) -> dict[str, int]:
    closed = await tx.all("close_instructions", count=BATCH)
    return {"closed": len(closed)} if closed else {}
