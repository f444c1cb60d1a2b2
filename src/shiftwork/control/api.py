"""The queue as a whole, as its operator sees it."""

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
        """Remove the tasks that match every condition, and return how many. At least one condition must be given.

        The setting `purge.mode` says whether they are cancelled or deleted. Tasks that an agent holds match only with
        `held`, or where `status` names their state.
        """

    @operation("GET /api/queue/blocked", "read")
    async def blocked(self) -> WaitingWork:
        """Say why work waits: how many tasks each cause keeps, and what would lift it.

        It is what `explain` says of each task, summed up: what is paused, breakers, cooldowns, limits, budgets, types
        that no agent takes, agents at capacity, dependencies, approvals, retries and waits.
        """

    @operation("GET /api/queue/backpressure", "read")
    async def backpressure(self) -> Backpressure:
        """Return how full the queue is: what waits, the limits, and how many more tasks find room."""

    @operation("GET /api/duties", "read", envelope="items")
    async def maintenance(self) -> list[MaintenanceJob]:
        """Return when each maintenance job last ran, what it did, and whether it is late or rests."""

    @operation("GET /api/bridges", "read", envelope="bridges", group="Bridges")
    async def bridges(self) -> list[BridgeInfo]:
        """Return the bridges to streams that this workspace has or had, when each last looked, and what it carries."""
