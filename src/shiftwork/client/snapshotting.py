"""What an operator does for the day on which the database is lost."""

from __future__ import annotations

from shiftwork.client.handle import Handle
from shiftwork.queue.snapshots import Snapshot
from shiftwork.wire.snapshots import SnapshotList


class Snapshotting(Handle):
    """Verbs about snapshots, which are of the whole queue with all its workspaces."""

    async def take_snapshot(self) -> Snapshot:
        return await self._once("/api/snapshots", Snapshot)

    async def snapshots(self) -> list[Snapshot]:
        return (await self._get("/api/snapshots", SnapshotList)).snapshots
