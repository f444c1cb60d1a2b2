"""What a monitoring system asks for: all metrics now, and those of a while ago."""

from __future__ import annotations

from shiftwork.queue import check, metrics
from shiftwork.queue.handle import Handle
from shiftwork.queue.metrics import Metrics


class Metering(Handle):
    """Verbs about what is measured."""

    async def metrics(self) -> Metrics:
        """Every metric of this workspace now; of more than 100,000 tasks, not older than five seconds."""
        measured, counted = self._shared.measured, self._shared.counted
        async with measured.turn:
            if (known := measured.find(self.workspace, self._engine.store.now())) is not None:
                return known
            await self._shared.tally.write()
            before = counted.get(self.workspace)
            found, counted[self.workspace] = await self._read(
                lambda tx: metrics.read(tx, self._engine, self.workspace, before)
            )
            measured.keep(self.workspace, found, sum(counted[self.workspace].counts.values()))
        return found

    async def metric_snapshots(self, *, since: float | None = None, limit: int = 10) -> list[Metrics]:
        """What was measured every `maintenance.metrics_sec`, the newest first; histograms are not kept."""
        count = check.page(limit, metrics.KEPT_SNAPSHOTS)
        return await self._read(lambda tx: metrics.kept(tx, self.workspace, since or 0.0, count))
