"""Snapshots: the whole queue in a file of the server's machine."""

from __future__ import annotations

from typing import Any

from shiftwork.core.errors import SnapshotFailed, SnapshotsUnavailable
from shiftwork.queue.snapshots import Snapshot
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors
from shiftwork.wire.shapes import SnapshotList

door = Doors("Snapshots")


@door("GET /api/snapshots", "read", answer=SnapshotList, errors=(SnapshotsUnavailable,))
async def list_snapshots(ask: Ask) -> Any:
    """Snapshots with their times, sizes and checksums, the newest first."""
    return SnapshotList(await ask.queue.snapshots())


@door("POST /api/snapshots", "operate", answer=Snapshot, status=201, errors=(SnapshotsUnavailable, SnapshotFailed))
async def take_snapshot(ask: Ask) -> Any:
    """Take a snapshot now, and keep it in the folder of the server."""
    return await ask.queue.take_snapshot()
