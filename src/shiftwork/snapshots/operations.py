"""Implements the operations on snapshots, and records snapshots in the queue."""

from __future__ import annotations

from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model.errors import ShiftworkError, SnapshotsUnavailable
from shiftwork.observe.alert_conditions import Finding, compare
from shiftwork.operation.local import Call, implements
from shiftwork.snapshots.api import Snapshots
from shiftwork.snapshots.model import Snapshot
from shiftwork.snapshots.snapshot_folder import SnapshotFile, SnapshotFolder, name_at
from shiftwork.store.store import Tx

ALERTED_WORKSPACE = "default"
"""The workspace that gets the event of a failed snapshot, which concerns all workspaces."""


@implements(Snapshots.take)
async def take_snapshot(call: Call) -> Snapshot:
    engine = call.engine
    folder = folder_of(engine)
    name, now = await call.run(begin), engine.store.now()
    found = await folder.take(engine.store.url, name, now)
    await prune(engine, now)
    return await call.run(taken, call.workspace, snapshot(found))


@implements(Snapshots.list)
async def list_snapshots(call: Call) -> list[Snapshot]:
    return [snapshot(found) for found in await folder_of(call.engine).all()]


def snapshot(found: SnapshotFile) -> Snapshot:
    head = found.head
    return Snapshot(found.name, head.created_at, found.size, head.checksum, head.schema_name)


def folder_of(engine: Engine) -> SnapshotFolder:
    if engine.snapshots is None:
        raise SnapshotsUnavailable("this queue has no folder for snapshots", where="snapshots")
    return engine.snapshots


async def begin(tx: Tx, _engine: Engine, _caller: Caller) -> str:
    """The name of the snapshot to take; a repeated request gets the same name."""
    return name_at(tx.now, requested=True)


async def prune(engine: Engine, now: float) -> None:
    """Remove old snapshots beyond the limits in the settings of the workspace `default`."""
    kept = (await engine.settings_cache.get(engine.store, "default")).settings().snapshots
    since = None if kept.keep_sec is None else now - kept.keep_sec
    await folder_of(engine).keep(kept.keep, since)


async def taken(tx: Tx, engine: Engine, caller: Caller, workspace: str, made: Snapshot) -> Snapshot:
    """Record who took a snapshot, and end the alert about an earlier failure."""
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "snapshot_taken", data={"name": made.name, "size": made.size, "checksum": made.checksum})
    await compare(work, ALERTED_WORKSPACE, "snapshot", [])
    await work.save_events()
    return made


async def record_result(tx: Tx, engine: Engine, caller: Caller, failure: ShiftworkError | None) -> None:
    """Emit one event when snapshots start to fail, and one when they work again."""
    found = [] if failure is None else [Finding("snapshot", "snapshot_failed", {"error": failure.what})]
    work = UnitOfWork(tx, engine, caller)
    await compare(work, ALERTED_WORKSPACE, "snapshot", found)
    await work.save_events()
