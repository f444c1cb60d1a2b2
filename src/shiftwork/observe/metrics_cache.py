"""Per-process metrics state: unwritten claim counts, and the latest metrics."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from contextlib import suppress

from shiftwork.engine.engine import Engine
from shiftwork.model.errors import ShiftworkError
from shiftwork.observe import meters
from shiftwork.observe.meters import Series
from shiftwork.observe.model import Metrics
from shiftwork.observe.policy import FEW
from shiftwork.store import crash_points

WRITE_EVERY_SEC = 10.0
AT_THE_END_SEC = 1.0
CALLS = "shiftwork_claim_calls_total"
AGAIN_SEC = 5.0


class Tally:
    """Counts claim calls by agent. Most find nothing and must not cost a write each; a crash loses ten seconds of
    them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._calls: Counter[Series] = Counter()
        self._written_at = time.monotonic()

    def record(self, workspace: str, agent_id: str, *, got_work: bool) -> bool:
        """Count a call; returns whether it is time to write."""
        self._calls[Series(workspace, CALLS, (agent_id, "work" if got_work else "nothing"))] += 1
        return time.monotonic() - self._written_at >= WRITE_EVERY_SEC

    async def write(self) -> None:
        """Write the counts; if that fails, they are written next time."""
        calls, self._calls = self._calls, Counter()
        self._written_at = time.monotonic()
        if not calls:
            return
        try:
            await crash_points.named(
                "claim counts", self._engine.store.run(functools.partial(meters.add, sums=dict(calls)))
            )
        except ShiftworkError:
            self._calls += calls

    async def close(self) -> None:
        """Write at the end; an unreachable store must not prevent the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(AT_THE_END_SEC):
                await self.write()


class MetricsCache:
    """The metrics of the last scrape by workspace, reused briefly if counting is expensive."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._reported: dict[str, Metrics] = {}

    def keep(self, workspace: str, found: Metrics, tasks: int) -> None:
        if tasks > FEW:
            self._reported[workspace] = found

    def find(self, workspace: str, now: float) -> Metrics | None:
        """The metrics that may be reused."""
        found = self._reported.get(workspace)
        return found if found is not None and 0 <= now - found.calculated_at < AGAIN_SEC else None
