"""Latencies of calls, with and without the calls during which the machine stalled."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from bench import witness
from bench.report import Bench, percentile

T = TypeVar("T")


class Times:
    """Latencies in milliseconds. All of them count; the percentile without stalls is shown as a note."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def __len__(self) -> int:
        return len(self._spans)

    async def of(self, call: Awaitable[T]) -> T:
        began = time.perf_counter()
        try:
            return await call
        finally:
            self._spans.append((began, time.perf_counter()))

    def add(self, milliseconds: float, ended: float | None = None) -> None:
        """Add a call that took this long and ended now, or at the given time."""
        ended = time.perf_counter() if ended is None else ended
        self._spans.append((ended - milliseconds / 1000, ended))

    def at(self, share: float) -> float:
        """Return this percentile in milliseconds."""
        return _percentile(self._spans, share)

    def show(self, bench: Bench, what: str) -> None:
        for share in (0.50, 0.95, 0.99):
            note = self._without_stalls(share) if share > 0.95 else ""
            bench.figure(f"{what}, p{share * 100:.0f}", [self.at(share)], "ms", note)

    def _without_stalls(self, share: float) -> str:
        """Return the percentile without stalls. No limit uses it: slow calls meet stalls more often than quick ones."""
        free = witness.undisturbed(self._spans)
        if not free or len(free) == len(self):
            return ""
        count = len(self) - len(free)
        return f"{_percentile(free, share):.1f} without {count} of {len(self)} during which the machine stood still"


def _percentile(spans: Sequence[tuple[float, float]], share: float) -> float:
    return percentile([1000 * (ended - began) for began, ended in spans], share)
