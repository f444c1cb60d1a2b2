"""State shared by all handles of an open queue."""

from __future__ import annotations

import asyncio
from typing import Any

from shiftwork.engine.claim_waiters import ClaimWaiters
from shiftwork.engine.coalesce import Coalescer
from shiftwork.engine.engine import Engine
from shiftwork.engine.event_waiters import EventWaiters
from shiftwork.engine.result_waiters import ResultWaiters
from shiftwork.observe.metrics_cache import MetricsCache, Tally
from shiftwork.observe.policy import TaskCounts


class Shared:
    """State of one open queue, shared by all its handles."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.claim_waiters = ClaimWaiters(engine.store)
        self.result_waiters = ResultWaiters(engine.store)
        self.event_waiters = EventWaiters(engine.store)
        self.coalescers: dict[tuple[Any, ...], Coalescer[Any, Any]] = {}
        self.claims_apart_until: dict[str, float] = {}
        """By workspace, until when (on the loop's clock) claims are not joined, because none was plain."""
        self.counting = asyncio.Lock()
        self.counted: dict[str, TaskCounts] = {}
        self.measured = MetricsCache()
        self.tally = Tally(engine)
        self.one_of_many = False
        """Whether this is one database of a map, so that a workspace may have left it."""
        self.left: set[str] = set()
        """Workspaces known to be in another database now."""
        self._under_way: set[asyncio.Future[Any]] = set()

    def record_move(self, workspace: str) -> None:
        """Record that a workspace has moved: its waiting calls continue on the other database."""
        self.left.add(workspace)
        self.claim_waiters.wake(frozenset())
        self.result_waiters.wake_all()
        self.event_waiters.wake_all()

    def keep(self, future: asyncio.Future[Any]) -> None:
        """Keep a background task alive until it ends."""
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def record_claim(self, workspace: str, agent_id: str, *, got_work: bool) -> None:
        """Count a claim call; counts are written periodically."""
        if self.tally.record(workspace, agent_id, got_work=got_work):
            self.keep(asyncio.ensure_future(self.tally.write()))

    async def close(self) -> None:
        await self.claim_waiters.close()
        await self.result_waiters.close()
        await self.event_waiters.close()
        await self.drain()
        await self.tally.close()
        await self.engine.store.close()

    async def drain(self) -> None:
        if self._under_way:
            await asyncio.gather(*self._under_way, return_exceptions=True)
