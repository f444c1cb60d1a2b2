"""Metrics and alerts, as callers see them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shiftwork.model.errors import NotFound
from shiftwork.model.task import PageSize
from shiftwork.model.times import Time
from shiftwork.observe.model import KEPT_SNAPSHOTS, Alert, By, Metrics, Pattern
from shiftwork.operation.declare import Namespace, operation

Seq = Annotated[int, Meta(ge=0, le=2**62)]


class MetricsApi(Namespace, name="metrics", group="Metrics"):
    """The metrics of a workspace."""

    @operation("GET /api/metrics", "read")
    async def read(self) -> Metrics:
        """Return every metric now. With more than 100,000 tasks the figures are at most five seconds old."""

    @operation("GET /api/metrics/snapshots", "read", envelope="snapshots")
    async def snapshots(
        self, *, since: Time | None = None, limit: Annotated[int, Meta(ge=1, le=KEPT_SNAPSHOTS)] = 10
    ) -> list[Metrics]:
        """Return the metrics stored every `maintenance.metrics_sec`, newest first; histograms are not stored."""

    @operation("GET /api/failures", "read", envelope="failures")
    async def failures(self, by: By = "signature", *, since: Time | None = None, limit: PageSize = 50) -> list[Pattern]:
        """Group failed attempts by type, agent, model, reason or signature, the most frequent first."""


class Alerts(Namespace, name="alerts", group="Metrics"):
    """Problems that need a person's attention."""

    @operation("POST /api/alerts/{seq}/acknowledge", "operate", errors=(NotFound,))
    async def acknowledge(self, seq: Seq) -> Alert:
        """Mark an alert as seen."""

    @operation("GET /api/alerts", "read", envelope="alerts")
    async def list(
        self, after: Seq = 0, *, open_only: bool = False, kind: str | None = None, limit: PageSize = 100
    ) -> list[Alert]:
        """Return alerts after a cursor, oldest first. Continue after the last `seq` to see every alert."""
