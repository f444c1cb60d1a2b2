"""Exports the queue's metrics by OTLP: read every 30 seconds, exported as often as the standard variables say."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shiftwork import tracing
from shiftwork.model.errors import ShiftworkError
from shiftwork.observe.metric_catalogue import METRICS
from shiftwork.observe.metrics import metric_of
from shiftwork.observe.model import Sample
from shiftwork.queue import Queue
from shiftwork.server import workspace_lookup

log = logging.getLogger("shiftwork.server")
EVERY_SEC = 30.0
WORKSPACE = "shiftwork.workspace"


class QueueMetrics:
    """The latest samples of all workspaces, which OpenTelemetry collects in a thread of its own."""

    def __init__(self, queue: Queue, meter: Any) -> None:
        self._queue = queue
        self._meter = meter
        self._observed: dict[str, list[Any]] = {}
        self._known: set[str] = set()

    async def report_forever(self) -> None:
        while True:
            try:
                await self.read()
            except ShiftworkError as error:
                log.warning("cannot read the metrics for OTLP: %s", error)
            await asyncio.sleep(EVERY_SEC)

    async def read(self) -> None:
        """Read the current samples of every workspace."""
        found: defaultdict[str, list[Any]] = defaultdict(list)
        for queue in await workspace_lookup.everywhere(self._queue):
            for sample in (await queue.metrics.read()).samples:
                if not sample.name.endswith("_bucket"):
                    found[sample.name].append(_observation(sample, queue.workspace))
        self._observed = dict(found)
        for name in sorted(found.keys() - self._known):
            self._register(name)

    def _register(self, name: str) -> None:
        """Register a metric. A histogram is exported as its sum and count, since the store counts its buckets."""
        self._known.add(name)
        metric = METRICS[metric_of(name)]
        make = self._meter.create_observable_gauge
        if metric.kind != "gauge":
            make = self._meter.create_observable_counter
        make(name.removesuffix("_total"), [self._collecting(name)], description=metric.meaning)

    def _collecting(self, name: str) -> Callable[[Any], Iterable[Any]]:
        def collect(_options: Any) -> Sequence[Any]:
            return self._observed.get(name, ())

        return collect


def _observation(sample: Sample, workspace: str) -> Any:
    from opentelemetry.metrics import Observation  # noqa: PLC0415  # an extra, which is installed here

    return Observation(sample.value, {WORKSPACE: workspace, **sample.labels})


def of(queue: Queue) -> QueueMetrics | None:
    """Return the exporter; None if metrics are off."""
    meter = tracing.meter()
    return None if meter is None else QueueMetrics(queue, meter)
