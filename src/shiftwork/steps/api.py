"""Steps and effects of a task, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from shiftwork.model.errors import EffectInFlight, FenceRequired, LeaseLost, NotFound, NotYourClaim, WrongState
from shiftwork.model.task import Name, PageSize, Text, Usage
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts, ClaimToken
from shiftwork.steps.model import MAX_KEY_LENGTH, Effect, Step

Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY_LENGTH)]
HOLDING = (NotFound, LeaseLost, WrongState, FenceRequired, NotYourClaim)


class Steps(Namespace, name="steps", group="Steps and effects"):
    """Named results inside a task that outlive the attempt that made them."""

    @operation("POST /api/tasks/{task_id}/steps/begin", "work", errors=HOLDING, key="never")
    async def begin(self, token: ClaimToken, name: Name) -> Step:
        """Begin a step. Returns it with its result if this or an earlier attempt has done it; otherwise, it is in
        flight.
        """

    @operation("POST /api/tasks/{task_id}/steps", "work", errors=HOLDING, key="never")
    async def complete(
        self,
        token: ClaimToken,
        name: Name,
        result: Any = None,
        usage: Annotated[Usage | Mapping[str, Any], Accepts(Usage)] | None = None,
    ) -> Step:
        """Store the result of a step with its cost. The first result wins, however often one is sent."""

    @operation("GET /api/tasks/{task_id}/steps", "read", envelope="steps", errors=(NotFound,))
    async def list(self, task_id: Name, *, after: Annotated[int, Meta(ge=0)] = 0, limit: PageSize = 100) -> list[Step]:
        """Return the steps of a task in order, a page at a time: continue `after` the place of the last.

        A result too large for a page is named by its `artifact`; `begin` returns it whole.
        """


class Effects(Namespace, name="effects", group="Steps and effects"):
    """Actions outside the queue that happen once per key, despite crashes."""

    @operation("POST /api/tasks/{task_id}/effects/begin", "work", errors=HOLDING)
    async def begin(self, token: ClaimToken, name: Name | None = None, *, key: Key | None = None) -> Effect:
        """Record the intent of an outside action. Perform the action only if the returned status is `new`.

        `done` comes with the result; `in_flight`: another task is performing it; `unknown`: find out, then finish it.
        By default, the key is made of the task's idempotency key, or its lineage, and `name`.
        """

    @operation("POST /api/tasks/{task_id}/effects/finish", "work", errors=HOLDING)
    async def finish(self, token: ClaimToken, key: Key, result: Any = None, *, happened: bool = True) -> Effect:
        """Record the outcome of an effect begun under this claim; with `happened` false, it may be retried."""

    @operation("POST /api/effects/resolve", "operate", errors=(NotFound, WrongState, EffectInFlight))
    async def resolve(self, key: Key, *, happened: bool, result: Any = None, note: Text | None = None) -> Effect:
        """Record whether an unknown effect happened. The task that failed over it is retried."""

    @operation("GET /api/tasks/{task_id}/effects", "read", envelope="effects", errors=(NotFound,))
    async def of_task(
        self,
        task_id: Name,
        *,
        key: str | None = None,
        open_only: bool = False,
        after: str = "",
        limit: PageSize = 100,
    ) -> list[Effect]:
        """Return the effects that a task has begun or must find out about, by key."""

    @operation("GET /api/effects", "read", envelope="effects")
    async def of_workspace(
        self, *, key: str | None = None, open_only: bool = False, after: str = "", limit: PageSize = 100
    ) -> list[Effect]:
        """Return effects by key: all, one, or those not known to be done."""

    async def list(
        self,
        task_id: str | None = None,
        *,
        key: str | None = None,
        open_only: bool = False,
        after: str = "",
        limit: int = 100,
    ) -> list[Effect]:
        """Return effects by key: those of a task, one, or those not known to be done."""
        if task_id is None:
            return await self.of_workspace(key=key, open_only=open_only, after=after, limit=limit)
        return await self.of_task(task_id, key=key, open_only=open_only, after=after, limit=limit)
