"""The log of a task, as callers see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from shiftwork.model.errors import FenceRequired, LeaseLost, NotFound, NotYourClaim, TooManyRequests, WrongState
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import Name
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts, ClaimToken
from shiftwork.task_logs.model import LogLine, LogPage, NewLog, NewLogItem, NewLogLine

MAX_WAIT_SEC = 25.0
MAX_PAGE = 1_000
ANSWERED_EARLY_SEC = 0.2
"""A stopping server does not wait: query it again after this."""

HOLDING = (NotFound, LeaseLost, WrongState, FenceRequired, NotYourClaim)
GivenLine = Annotated[NewLogLine | Mapping[str, Any], Accepts(NewLogLine)]


class TaskLogs(Namespace, name="tasks", group="Tasks"):
    """The logs of tasks."""

    @operation(
        "GET /api/tasks/{task_id}/logs",
        "read",
        errors=(NotFound, TooManyRequests),
        long_poll="wait",
        rename={"wait": "wait_sec"},
    )
    async def logs(
        self,
        task_id: Name,
        *,
        after: Annotated[int, Meta(ge=0, le=2**62)] = 0,
        limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE,
        wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_SEC)] = 0,
    ) -> LogPage:
        """Return the lines of a task's log after a cursor: what its handler logged, and what a command agent printed.

        With `wait`, wait that long for a line or for the end of the task. Lines sent together count as one in `limit`.
        """

    async def follow_logs(self, task_id: str, *, after: int = 0) -> AsyncIterator[LogLine]:
        """Yield the lines of a task's log as they come, each once, until the task has ended."""
        while True:
            page = await self.logs(task_id, after=after, wait=MAX_WAIT_SEC)
            for line in page.lines:
                yield line
            if page.ended:
                return
            after = page.next
            if not page.lines:
                await asyncio.sleep(ANSWERED_EARLY_SEC)


class ClaimLogs(Namespace, name="claims", group="Working"):
    """The log of a claimed task."""

    @operation("POST /api/tasks/{task_id}/logs", "work", errors=HOLDING)
    async def log(
        self, token: ClaimToken, lines: Annotated[Sequence[GivenLine], Meta(min_length=1, max_length=1000)]
    ) -> Outcome:
        """Add lines to the log of the claimed task, in order. A log holds a million characters."""


class LogBatch(Namespace, name="batch", group="Working"):
    """The same for many claims."""

    @operation("POST /api/batch/logs", "work", envelope="outcomes", batch="logs", errors=(FenceRequired,))
    async def log(
        self, logs: Sequence[Annotated[NewLog | Mapping[str, Any], Accepts(Any, over_http=NewLogItem)]]
    ) -> list[Outcome]:
        """Add lines to the logs of several tasks; each has its own outcome."""
