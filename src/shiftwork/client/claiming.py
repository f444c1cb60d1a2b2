"""How agents come to work: claim it at once, or let the server wait until there is some."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from shiftwork.client.handle import Handle, given, new_key, part
from shiftwork.core import ids
from shiftwork.core.errors import ShiftworkError
from shiftwork.core.task import Task
from shiftwork.policy.verdict import Trial, tests_of
from shiftwork.queue.claim import Assignment, ClaimAnswer
from shiftwork.queue.content.inputs import Input
from shiftwork.queue.fence import Token, parse_token
from shiftwork.wire.shapes import Assigned, ClaimReply, ClaimToken, Outcomes, TaskList


class HandedOut(Assignment):
    """A claimed task as a server hands it over."""

    __slots__ = ("_assigned",)

    def __init__(self, assigned: Assigned) -> None:
        self._assigned = assigned

    @property
    def id(self) -> str:
        return self._assigned.task.id

    @property
    def fence(self) -> int:
        return self._assigned.task.fence

    @property
    def claim(self) -> Token:
        return parse_token(self._assigned.token)

    @property
    def token(self) -> str:
        return self._assigned.token

    @property
    def type(self) -> str:
        return self._assigned.task.type

    @property
    def ack_required_by(self) -> float | None:
        return self._assigned.ack_required_by

    @property
    def execution_deadline(self) -> float | None:
        return self._assigned.execution_deadline

    @property
    def heartbeat_interval_sec(self) -> float:
        return self._assigned.heartbeat_interval_sec

    @property
    def model(self) -> str | None:
        return self._assigned.model

    @property
    def payload(self) -> dict[str, Any]:
        return self._assigned.task.payload

    @property
    def inputs(self) -> list[Input]:
        return self._assigned.inputs

    @property
    def tests(self) -> Trial | None:
        return tests_of(self._assigned.task.output)

    @property
    def traceparent(self) -> str | None:
        return self._assigned.task.traceparent

    def task(self) -> Task:
        return self._assigned.task


class Claiming(Handle):
    """Verbs that hand work out."""

    async def claim(self, /, agent_id: str, count: int = 1, *, wait: float = 0, **options: Any) -> list[Assignment]:
        return (await self.claim_answer(agent_id, count, wait=wait, **options)).assignments

    async def claim_answer(
        self,
        agent_id: str,
        count: int = 1,
        *,
        wait: float = 0,
        runtime_id: str | None = None,
        start: bool = False,
        types: Sequence[str] | None = None,
        capabilities: Sequence[str] = (),
        models: Sequence[str] = (),
        fifo: bool = False,
    ) -> ClaimAnswer:
        asked = given(agent_id=agent_id, count=count, wait_sec=wait, runtime_id=runtime_id, start=start, types=types)
        wants = {"capabilities": capabilities, "models": models, "fifo": fifo}
        return await self._claim(agent_id, wait, {**asked, **wants})

    async def claim_for_runtime(
        self, /, runtime_id: str, count: int = 1, *, wait: float = 0, **options: Any
    ) -> ClaimAnswer:
        asked = given(runtime_id=runtime_id, count=count, wait_sec=wait, **options)
        return await self._claim(runtime_id, wait, asked)

    async def claims_made(self, who: str, request_id: str) -> list[Task]:
        return (await self._get("/api/claims", TaskList, who=who, request=request_id)).tasks

    async def current_token(self, task_id: str, *, agent_id: str | None = None, runtime_id: str | None = None) -> str:
        path = f"/api/tasks/{part(task_id, 'task_id')}/claim"
        return (await self._get(path, ClaimToken, agent_id=agent_id, runtime_id=runtime_id)).token

    async def _claim(self, who: str, wait: float, body: dict[str, Any]) -> ClaimAnswer:
        """The key makes a repeat known to the server. What is claimed for a caller who has gone is given back."""
        key = new_key()
        try:
            told = await self._send("POST", "/api/tasks/claim", ClaimReply, body, key=key, wait_sec=max(0.0, wait))
        except asyncio.CancelledError:
            self._transport.keep(self._give_back(who, key))
            raise
        assignments: list[Assignment] = [HandedOut(assigned) for assigned in told.assignments]
        closed = tuple(told.closed)
        return ClaimAnswer(assignments, closed, told.no_fit, told.at_capacity, slow_down_sec=told.slow_down_sec)

    async def _give_back(self, who: str, key: str) -> None:
        with suppress(ShiftworkError):
            tokens = [ids.token(task.id, task.fence) for task in await self.claims_made(who, key)]
            body = {"tokens": tokens, "reason": "whoever claimed it has gone"}
            if tokens:
                await self._once("/api/batch/release", Outcomes, body)
