"""Snapshots: the whole queue in a file of the server's machine."""

from __future__ import annotations

from typing import Any

from shiftwork.core.errors import SnapshotFailed, SnapshotsUnavailable, TooManyRequests
from shiftwork.core.scopes import SERVER
from shiftwork.queue.snapshots import Snapshot
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors
from shiftwork.wire.shapes import SnapshotList

door = Doors("Snapshots")


@door("GET /api/snapshots", SERVER, answer=SnapshotList, errors=(SnapshotsUnavailable,))
async def list_snapshots(ask: Ask) -> Any:
    """Snapshots of the whole queue with their times, sizes and checksums, the newest first."""
    return SnapshotList(await ask.queue.snapshots())


@door(
    "POST /api/snapshots",
    SERVER,
    answer=Snapshot,
    status=201,
    errors=(SnapshotsUnavailable, SnapshotFailed, TooManyRequests),
)
async def take_snapshot(ask: Ask) -> Any:
    """Take a snapshot of all workspaces now, and keep it in the folder of the server; at most once a minute."""
    return await ask.queue.take_snapshot()
