"""Snapshots, as callers see them."""

from __future__ import annotations

from shiftwork.model.errors import SnapshotFailed, SnapshotsUnavailable, TooManyRequests
from shiftwork.operation.declare import Namespace, operation
from shiftwork.snapshots.model import Snapshot


class Snapshots(Namespace, name="snapshots", group="Snapshots"):
    """Copies of the whole queue, with all its workspaces, in files."""

    @operation(
        "POST /api/snapshots", "server", status=201, errors=(SnapshotsUnavailable, SnapshotFailed, TooManyRequests)
    )
    async def take(self) -> Snapshot:
        """Write the whole queue, as it is now, into the folder of its snapshots; at most once a minute."""

    @operation("GET /api/snapshots", "server", envelope="snapshots", errors=(SnapshotsUnavailable,))
    async def list(self) -> list[Snapshot]:
        """Return the snapshots with their times, sizes and checksums, the newest first."""
