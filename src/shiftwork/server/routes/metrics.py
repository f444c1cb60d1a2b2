"""What is measured, for monitoring systems and for programs."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from msgspec import Meta
from starlette.responses import Response

from shiftwork.core.scopes import SERVER
from shiftwork.queue.observation.metrics import KEPT_SNAPSHOTS, Metrics
from shiftwork.server import metrics as exposition
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors, PlainText, Query
from shiftwork.wire.shapes import MetricSnapshots

door = Doors("Metrics")


@door("GET /metrics", "read", answer=PlainText)
async def scrape(ask: Ask) -> Any:
    """Every metric of a workspace in the text format of Prometheus.

    With the scope `server` also what is counted for all workspaces together: latencies, and writes that were refused.
    """
    found, house = await ask.queue.metrics(), ask.house
    shared = (house.latencies, house.queue.engine.counters) if ask.who.may(SERVER) else (None, Counter())
    told = exposition.text(found, *shared)
    return Response(told, headers={"content-type": exposition.MEDIA_TYPE})


@door("GET /api/metrics", "read", answer=Metrics)
async def metrics(ask: Ask) -> Any:
    """The same as JSON, without what this server says of itself."""
    return await ask.queue.metrics()


class SnapshotQuery(Query):
    """Of which time, and how many."""

    since: float | None = None
    limit: Annotated[int, Meta(ge=1, le=KEPT_SNAPSHOTS)] = 10


@door("GET /api/metrics/snapshots", "read", query=SnapshotQuery, answer=MetricSnapshots)
async def metric_snapshots(ask: Ask) -> Any:
    """What was measured every `maintenance.metrics_sec`, the newest first; histograms are not kept."""
    return MetricSnapshots(await ask.queue.metric_snapshots(since=ask.query.since, limit=ask.query.limit))
