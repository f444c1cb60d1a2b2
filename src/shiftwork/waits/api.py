"""Waits, signals and people's decisions, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

from msgspec import Meta

from shiftwork.model.errors import (
    CircularDependency,
    FenceRequired,
    LeaseLost,
    NotFound,
    NotYourClaim,
    RevisionChanged,
    UnknownDependency,
    VersionConflict,
    WrongState,
)
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import Failures, Name, PageSize, Text, Wait
from shiftwork.model.times import MAX_TIME, DatedTime, Duration, Time
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import ClaimToken
from shiftwork.waits.model import ApprovalRequest, Kind, Signalled, WaitResult

Seconds = Annotated[float, Meta(gt=0, le=MAX_TIME)] | timedelta
HOLDING = (NotFound, LeaseLost, WrongState, FenceRequired, NotYourClaim)
DECIDING = (NotFound, WrongState, RevisionChanged, VersionConflict)


class Waits(Namespace, name="waits", group="Waiting and asking"):
    """Waiting for tasks, a time, a signal or a person without holding a slot."""

    @operation("POST /api/tasks/{task_id}/wait", "work", errors=(*HOLDING, CircularDependency, UnknownDependency))
    async def request(
        self,
        token: ClaimToken,
        *,
        tasks: Sequence[Name] | None = None,
        failures: Failures = "wait",
        name: Name | None = None,
        until: DatedTime | None = None,
        signal: Name | None = None,
        question: Text | None = None,
        schema: Mapping[str, Any] | None = None,
        timeout_sec: Seconds | None = None,
    ) -> WaitResult:
        """Free the slot until tasks are done, a time has come, a signal was sent or a person has answered.

        The task is then ready for any agent that can take it. For a named wait, the same call then returns the result.
        If all tasks are already done, the slot is kept, and `status` is `running`.

        Tasks are done when they are completed; with `failures` set to `return`, once they have ended, whatever the
        outcome. `failed` lists those that ended without success, and so does the task itself from then on.
        """

    async def wait(
        self,
        token: ClaimToken,
        name: str,
        *,
        until: Time | None = None,
        signal: str | None = None,
        question: str | None = None,
        schema: Mapping[str, Any] | None = None,
        timeout_sec: Duration | None = None,
    ) -> Wait:
        """Wait under this name for a time, a signal or a person's answer; the slot is released while it is open.

        When the task runs again, the same call returns the result: `met` with its value, or `expired`.
        """
        result = await self.request(
            token,
            name=name,
            until=until,
            signal=signal,
            question=question,
            schema=schema,
            timeout_sec=timeout_sec,
        )
        assert result.wait is not None
        return result.wait

    async def wait_for_tasks(self, token: ClaimToken, tasks: Sequence[str], *, failures: Failures = "wait") -> str:
        """Free the slot until these tasks are done; the task is then ready for any agent that can take it.

        If they are all done, the slot is kept, and the answer is `running`. With `failures="return"` they are done
        once they have ended, whatever the outcome; the task's `failed_dependencies` say which ended without success.
        An outcome with which the task continued stays, even if a person retries that subtask later.
        """
        return (await self.request(token, tasks=tasks, failures=failures)).status

    @operation("POST /api/signals", "submit", status=201, errors=(NotFound, WrongState))
    async def signal(self, name: Name, data: Any = None, *, task: Name | None = None) -> Signalled:
        """Send a signal to all tasks that wait for it, or to one; it is kept for a day for later waits."""


class Approvals(Namespace, name="approvals", group="Waiting and asking"):
    """Requests to people: approvals that guards require, and questions of agents."""

    @operation("POST /api/tasks/{task_id}/approve", "operate", errors=DECIDING)
    async def approve(
        self, task_id: Name, *, revision: Name | None = None, note: Text | None = None, version: int | None = None
    ) -> Outcome:
        """Approve a task that a guard has stopped; with `revision`, only if the work has not changed since."""

    @operation("POST /api/tasks/{task_id}/reject", "operate", errors=DECIDING)
    async def reject(
        self, task_id: Name, *, revision: Name | None = None, note: Text | None = None, version: int | None = None
    ) -> Outcome:
        """Cancel a task that a guard has stopped."""

    @operation("POST /api/tasks/{task_id}/answer", "operate", errors=(NotFound, WrongState))
    async def answer(self, task_id: Name, value: Any) -> Outcome:
        """Answer the question that a task asks; the answer must fit the question's schema."""

    @operation("GET /api/approvals", "read", envelope="approvals", errors=(NotFound,))
    async def list(
        self,
        *,
        kind: Kind | None = None,
        type: Name | None = None,
        task: Name | None = None,
        after: str | None = None,
        limit: PageSize = 100,
    ) -> list[ApprovalRequest]:
        """Return open requests to people, by task: approvals that guards require, and questions of agents."""
