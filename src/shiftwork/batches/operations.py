"""Implements the operations on batches."""

from __future__ import annotations

from shiftwork.batches.api import ProviderBatches
from shiftwork.batches.model import Batch, BatchStatus, BatchTask
from shiftwork.engine.engine import Caller, Engine
from shiftwork.model import ids
from shiftwork.model.errors import NotFound
from shiftwork.operation.local import reading
from shiftwork.store.store import Row, Tx


@reading(ProviderBatches.list)
async def list_batches(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, *, status: BatchStatus | None = None, limit: int = 50
) -> list[Batch]:
    return [_batch(row) for row in await tx.all("list_batches", workspace=workspace, status=status, count=limit)]


@reading(ProviderBatches.show)
async def show_batch(tx: Tx, engine: Engine, caller: Caller, workspace: str, batch_id: str) -> Batch:
    uuid = ids.parse(batch_id)
    row = None if uuid is None else await tx.one("read_batch", workspace=workspace, id=uuid)
    if row is None:
        raise NotFound(f"there is no batch {batch_id!r}", hint="List them: shiftwork batches list.")
    items = await tx.all("read_batch_items", id=row["id"])
    return _batch(row, [BatchTask(ids.show_task(item["task_id"]), item["status"]) for item in items])


_SHOWN = (
    *("id", "provider", "model", "status", "requests", "open", "created_at", "expires_at", "posted_at", "ended_at"),
    *("external_id", "error", "cancel_asked_at"),
)


def _batch(row: Row, tasks: list[BatchTask] | None = None) -> Batch:
    return Batch(**{name: row[name] for name in _SHOWN}, cost_usd=row["cost"] / 1_000_000, tasks=tasks or [])
