"""Claims lost on purpose: a frozen process writes late only by chance, but these always do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from shiftwork.model.errors import ConflictError, NotFound, OperationTimeout, Overloaded, StoreError
from shiftwork.operation.interface import AnyQueue
from shiftwork.prove.workload import PROBE

PROBES = 3
AWAY = (StoreError, OperationTimeout, Overloaded)
"""Errors during a fault, after which a caller retries."""


class Probes:
    """An agent that falls silent while it holds tasks, another that takes them over, and late writes by the first."""

    def __init__(self, queue: AnyQueue) -> None:
        self._queue = queue
        self._lost: dict[str, str] = {}
        """The lost claim of each task, until the other agent has it."""
        self.tried = self.accepted = self.completed = 0

    async def run(self) -> None:
        """Run round after round; a round interrupted by a fault is retried."""
        while True:
            with suppress(*AWAY):
                await (self._take_over() if self._lost else self._begin())
            await asyncio.sleep(0.25)

    async def _begin(self) -> None:
        for agent in ("silent", "heir"):
            await self._queue.agents.register(id=agent, types=[PROBE], max_concurrent_tasks=10 * PROBES)
        await self._queue.submit_many([{"type": PROBE}] * PROBES)
        for claim in await self._queue.claim("silent", PROBES, start=True, types=[PROBE]):
            self._lost[claim.id] = claim.token

    async def _take_over(self) -> None:
        """After a lease has expired: the heir claims the task, the silent agent writes late, the heir completes it."""
        for claim in await self._queue.claim("heir", PROBES, start=True, types=[PROBE]):
            late = self._lost.pop(claim.id, None)
            if late is not None:
                await self._write_late(late)
            with suppress(ConflictError, NotFound):  # an accepted late result has ended it
                await self._queue.complete(claim.token, "in time")
                self.completed += 1

    async def _write_late(self, token: str) -> None:
        writes = (
            lambda: self._queue.steps.complete(token, "think", "late"),
            lambda: self._queue.complete(token, "late"),
        )
        for write in writes:
            self.tried += 1
            self.accepted += not await _is_refused(write)


async def _is_refused(write: Callable[[], Awaitable[object]]) -> bool:
    """Whether a late write is refused; any other outcome is wrong. It is retried while the queue is unavailable."""
    while True:
        try:
            await write()
        except ConflictError:
            return True
        except AWAY:
            await asyncio.sleep(0.2)
        except Exception:  # noqa: BLE001  # it passed the fence and failed later
            return False
        else:
            return False
