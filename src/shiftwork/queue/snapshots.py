"""Snapshots as a caller sees them, and what the queue itself notes of them."""

from __future__ import annotations

import msgspec

from shiftwork.copying.folder import Found, SnapshotFolder, name_at
from shiftwork.core.errors import ShiftworkError, SnapshotsUnavailable
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.observation.conditions import Finding, compare
from shiftwork.queue.work import Work
from shiftwork.store.store import Tx

TOLD_TO = "default"
"""A snapshot is of all workspaces; one of them is told when it fails."""


class Snapshot(msgspec.Struct, frozen=True):
    """The whole queue, all its workspaces, as it was at `created_at`."""

    name: str
    created_at: float
    size: int
    checksum: str
    schema: str


def snapshot(found: Found) -> Snapshot:
    head = found.head
    return Snapshot(found.name, head.created_at, found.size, head.checksum, head.schema_name)


def folder_of(engine: Engine) -> SnapshotFolder:
    if engine.snapshots is None:
        raise SnapshotsUnavailable("this queue has no folder for snapshots", where="snapshots")
    return engine.snapshots


async def begin(tx: Tx, _engine: Engine, _caller: Caller) -> str:
    """The name of the snapshot that is taken now; a request that is sent again gets the same."""
    return name_at(tx.now, asked=True)


async def prune(engine: Engine, now: float) -> None:
    """Remove the snapshots that are too many and old enough, in the words of the workspace `default`."""
    kept = (await engine.book.get(engine.store, "default")).settings().snapshots
    since = None if kept.keep_sec is None else now - kept.keep_sec
    await folder_of(engine).keep(kept.keep, since)


async def taken(tx: Tx, engine: Engine, caller: Caller, workspace: str, made: Snapshot) -> Snapshot:
    """Note who took a snapshot; that an earlier one failed is over."""
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "snapshot_taken", data={"name": made.name, "size": made.size, "checksum": made.checksum})
    await compare(work, TOLD_TO, "snapshot", [])
    await work.save_events()
    return made


async def judge(tx: Tx, engine: Engine, caller: Caller, failure: ShiftworkError | None) -> None:
    """Tell that snapshots fail, once, and once that it is over."""
    found = [] if failure is None else [Finding("snapshot", "snapshot_failed", {"error": failure.what})]
    work = Work(tx, engine, caller)
    await compare(work, TOLD_TO, "snapshot", found)
    await work.save_events()
