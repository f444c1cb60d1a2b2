"""Steering, as callers see it: send instructions to the agent that holds a task, and read them under its claim."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shiftwork.model.errors import FenceRequired, LeaseLost, NotFound, NotYourClaim, WrongState
from shiftwork.model.outcome import Outcome
from shiftwork.model.reports import MAX_INSTRUCTION, MAX_INSTRUCTIONS, Instruction
from shiftwork.model.task import Name
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import ClaimToken

HOLDING = (NotFound, LeaseLost, WrongState, FenceRequired, NotYourClaim)
Words = Annotated[str, Meta(min_length=1, max_length=MAX_INSTRUCTION)]
Seq = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Steering(Namespace, name="", group="Tasks"):
    """Instructions to running work."""

    @operation("POST /api/tasks/{task_id}/instructions", "operate", status=201, errors=(NotFound, WrongState))
    async def tell(self, task_id: Name, text: Words) -> Instruction:
        """Send an instruction to the agent that holds a task, or that claims it next.

        Each heartbeat's answer brings it, in order, until it is acknowledged. A later attempt gets all instructions of
        the task again. A completed or cancelled task accepts none.
        """


class TaskInstructions(Namespace, name="tasks", group="Tasks"):
    """The instructions of a task."""

    @operation("GET /api/tasks/{task_id}/instructions", "read", envelope="instructions", errors=(NotFound,))
    async def instructions(
        self, task_id: Name, *, after: Seq = 0, limit: Annotated[int, Meta(ge=1, le=MAX_INSTRUCTIONS)] = 100
    ) -> list[Instruction]:
        """Return the instructions sent to a task, in order, and whether each was delivered and acknowledged."""


class Inbox(Namespace, name="claims", group="Working"):
    """The instructions of a claimed task."""

    @operation("POST /api/tasks/{task_id}/inbox", "work", key="never", envelope="instructions", errors=HOLDING)
    async def inbox(self, token: ClaimToken, *, after: Seq = 0) -> list[Instruction]:
        """Return all instructions of the claimed task, including those that an earlier attempt acknowledged.

        Call it at the start of an attempt; later instructions come with heartbeats.
        """

    @operation("POST /api/tasks/{task_id}/inbox/acknowledge", "work", key="never", errors=HOLDING)
    async def acknowledge(self, token: ClaimToken, seq: Seq) -> Outcome:
        """Acknowledge the instructions up to this number; heartbeats no longer bring them."""
