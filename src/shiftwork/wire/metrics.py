"""What travels over HTTP of what is measured."""

from __future__ import annotations

import msgspec

from shiftwork.queue.metrics import Metrics


class MetricSnapshots(msgspec.Struct, frozen=True):
    """What was measured at some times, the newest first."""

    snapshots: list[Metrics]
