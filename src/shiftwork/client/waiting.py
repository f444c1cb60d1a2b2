"""What tasks wait for besides other tasks, and what people and programs say to them: signals, answers, approvals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shiftwork.client.handle import Handle, given, of_claim, outcome, part
from shiftwork.core.task import Wait
from shiftwork.queue.fence import Outcome
from shiftwork.queue.waits.approvals import Asked
from shiftwork.queue.waits.waits import Signalled
from shiftwork.wire.shapes import OutcomeReply
from shiftwork.wire.waiting import AskedList, WaitReply


class Waiting(Handle):
    """Verbs of waits and of those who end them."""

    async def wait(
        self,
        token: str,
        name: str,
        *,
        until: float | None = None,
        signal: str | None = None,
        question: str | None = None,
        schema: Mapping[str, Any] | None = None,
        timeout_sec: float | None = None,
    ) -> Wait:
        path, text = of_claim(token, "wait")
        terms = given(until=until, signal=signal, question=question, schema=schema, timeout_sec=timeout_sec)
        found = (await self._once(path, WaitReply, {"token": text, "name": name, **terms})).wait
        assert found is not None
        return found

    async def signal(self, name: str, data: Any = None, *, task: str | None = None) -> Signalled:
        return await self._once("/api/signals", Signalled, given(name=name, data=data, task=task))

    async def answer(self, task_id: str, value: Any) -> Outcome:
        path = f"/api/tasks/{part(task_id, 'task_id')}/answer"
        return outcome(await self._once(path, OutcomeReply, {"value": value}))

    async def approvals(
        self,
        *,
        kind: str | None = None,
        type: str | None = None,  # noqa: A002  # the task's word
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Asked]:
        asked: dict[str, Any] = {"kind": kind, "type": type, "task": task, "after": after, "limit": limit}
        return (await self._get("/api/approvals", AskedList, **asked)).approvals

    async def approve(
        self, task_id: str, *, revision: str | None = None, note: str | None = None, version: int | None = None
    ) -> Outcome:
        return await self._decide(task_id, "approve", revision=revision, note=note, version=version)

    async def reject(
        self, task_id: str, *, revision: str | None = None, note: str | None = None, version: int | None = None
    ) -> Outcome:
        return await self._decide(task_id, "reject", revision=revision, note=note, version=version)

    async def _decide(self, task_id: str, verb: str, **said: Any) -> Outcome:
        path = f"/api/tasks/{part(task_id, 'task_id')}/{verb}"
        return outcome(await self._once(path, OutcomeReply, given(**said)))
