"""What a monitoring system asks for: all metrics now, and those of a while ago."""

from __future__ import annotations

from shiftwork.client.handle import Handle
from shiftwork.queue.metrics import Metrics
from shiftwork.wire.metrics import MetricSnapshots


class Metering(Handle):
    """Verbs about what is measured."""

    async def metrics(self) -> Metrics:
        return await self._get("/api/metrics", Metrics)

    async def metric_snapshots(self, *, since: float | None = None, limit: int = 10) -> list[Metrics]:
        return (await self._get("/api/metrics/snapshots", MetricSnapshots, since=since, limit=limit)).snapshots
