"""What an operator does for the day on which the database is lost."""

from __future__ import annotations

from shiftwork.queue import snapshots
from shiftwork.queue.handle import Handle
from shiftwork.queue.snapshots import Snapshot


class Snapshotting(Handle):
    """Verbs about snapshots, which are of the whole queue with all its workspaces."""

    async def take_snapshot(self) -> Snapshot:
        """Write all of the queue, as it stands now, into the folder of its snapshots."""
        folder = snapshots.folder_of(self._engine)
        name = await self._run(snapshots.begin)
        found = await folder.take(self._engine.store.url, name, self._engine.store.now())
        return await self._run(snapshots.taken, self.workspace, snapshots.snapshot(found))

    async def snapshots(self) -> list[Snapshot]:
        """The snapshots there are, the newest first."""
        return [snapshots.snapshot(found) for found in await snapshots.folder_of(self._engine).all()]
