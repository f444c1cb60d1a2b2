"""Maintenance jobs for waiting tasks: timers that end, expired waits and approvals, and partly delivered signals."""

from __future__ import annotations

from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.maintenance.model import BATCH, Counts
from shiftwork.store.store import Tx
from shiftwork.waits import approvals as deciding
from shiftwork.waits import open_waits as waiting
from shiftwork.waits.open_waits import WaitEnd


async def waits(tx: Tx, engine: Engine) -> Counts:
    """End waits whose time has come: a timer is met, a wait for a signal or an answer expires."""
    caller = Caller("maintenance:waits")
    due = await tx.all("due_waits", now=tx.now, count=BATCH)
    counts: Counts = {}
    if due:
        work = UnitOfWork(tx, engine, caller)
        times = {(wait["root_id"], wait["name"]) for wait in due if wait["kind"] == "time"}
        asked = {wait["root_id"]: "question_expired" for wait in due if wait["kind"] == "person"}
        endings = [
            WaitEnd(*place, "met" if place in times else "expired")
            for place in ((wait["root_id"], wait["name"]) for wait in due)
        ]
        counts["ended"] = len(await waiting.end(work, endings, asked=asked))
        await work.save()
    return {**counts, **await _spread_signals(tx, engine, caller)}


async def _spread_signals(tx: Tx, engine: Engine, caller: Caller) -> Counts:
    """Continue to deliver a signal whose sender died after the first page."""
    freed = 0
    for sent in await tx.all("unsent_signals", count=1):
        freed += (await waiting.spread(tx, engine, caller, sent["workspace"], sent["seq"])).freed
    return {"signalled": freed} if freed else {}


async def approvals(tx: Tx, engine: Engine) -> Counts:
    """Decide overdue approvals as their rules say."""
    due = await tx.all("due_approvals", now=tx.now, count=BATCH)
    if not due:
        return {}
    return {
        "decided": await deciding.expire(tx, engine, Caller("maintenance:approvals"), [row["task_id"] for row in due])
    }
