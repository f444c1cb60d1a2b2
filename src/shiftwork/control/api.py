"""Operations on the queue as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from shiftwork.control.model import BridgeInfo, MaintenanceJob
from shiftwork.limits.model import Backpressure
from shiftwork.model.task import Name, Text
from shiftwork.model.times import Time
from shiftwork.observe.model import WaitingWork
from shiftwork.operation.declare import Namespace, operation
from shiftwork.search.model import Level


class Control(Namespace, name="control", group="Queue"):
    """Pausing, purging and watching the queue as a whole."""

    @operation("POST /api/queue/pause", "operate", status=204)
    async def pause(self, type: Name | None = None, *, reason: Text | None = None) -> None:
        """Stop handing out work, of one type or of all types; running tasks continue."""

    @operation("POST /api/queue/resume", "operate", envelope="resumed")
    async def resume(self, type: Name | None = None) -> bool:
        """Hand out work again; False when it was not paused."""

    @operation("POST /api/queue/purge", "operate", envelope="purged")
    async def purge(
        self,
        *,
        status: Sequence[Name] = (),
        type: Name | None = None,
        tag: Name | None = None,
        level: Level | None = None,
        created_before: Time | None = None,
        held: bool = False,
    ) -> int:
        """Remove the tasks that match every condition, and return how many. Requires at least one condition.

        The setting `purge.mode` says whether they are cancelled or deleted. Claimed tasks match only with
        `held`, or if `status` names their state.
        """

    @operation("GET /api/queue/blocked", "read")
    async def blocked(self) -> WaitingWork:
        """Return why work waits: how many tasks each cause affects, and what would lift it.

        A summary of `explain` over all tasks: pauses, breakers, cooldowns, limits, budgets, types that no agent takes,
        agents at capacity, dependencies, approvals, retries and waits.
        """

    @operation("GET /api/queue/backpressure", "read")
    async def backpressure(self) -> Backpressure:
        """Return how full the queue is: waiting tasks, limits, and remaining room."""

    @operation("GET /api/duties", "read", envelope="items")
    async def maintenance(self) -> list[MaintenanceJob]:
        """Return when each maintenance job last ran, what it did, and whether it is late or paused."""

    @operation("GET /api/bridges", "read", envelope="bridges", group="Bridges")
    async def bridges(self) -> list[BridgeInfo]:
        """Return this workspace's current and past bridges to streams, when each last polled, and its open entries."""
