"""Alerts as a reader sees them, and who has looked at them."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import NotFound
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx


class Alert(msgspec.Struct, frozen=True):
    """Something that somebody should look at; `acknowledged_at` says when somebody did."""

    seq: int
    at: float
    workspace_id: str
    kind: str
    severity: str
    message: str
    task_id: str | None
    data: dict[str, Any]
    acknowledged_at: float | None
    acknowledged_by: str | None


def alert(row: Row) -> Alert:
    return Alert(
        seq=row["seq"],
        at=row["at"],
        workspace_id=row["workspace"],
        kind=row["kind"],
        severity=row["severity"],
        message=row["message"],
        task_id=None if row["task_id"] is None else ids.show_task(row["task_id"]),
        data=msgspec.json.decode(row["data"]),
        acknowledged_at=row["acknowledged_at"],
        acknowledged_by=row["acknowledged_by"],
    )


async def acknowledge(tx: Tx, engine: Engine, caller: Caller, workspace: str, seq: int) -> Alert:
    """Note who has looked at an alert; the first one stands."""
    if await tx.one("acknowledge_alert", seq=seq, workspace=workspace, now=tx.now, actor=caller.actor):
        work = Work(tx, engine, caller)
        work.tell_of(workspace, "alert_acknowledged", data={"alert": seq})
        await work.save_events()
    row = await tx.one("read_alert", seq=seq, workspace=workspace)
    if row is None:
        raise NotFound(f"there is no alert {seq}", where="seq")
    return alert(row)
