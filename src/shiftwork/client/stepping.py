"""What an agent keeps of its work while it works: steps that outlive the attempt, and effects that happen once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shiftwork.client.handle import Handle, given, new_key, of_claim, part
from shiftwork.core.task import Usage
from shiftwork.queue import check
from shiftwork.queue.durable.effects import Effect
from shiftwork.queue.durable.steps import Step
from shiftwork.wire.steps import EffectList, StepList


class Stepping(Handle):
    """Verbs of durable execution."""

    # -- steps -----------------------------------------------------------------------------------------------------

    async def steps(self, task_id: str, *, after: int = 0, limit: int = 100) -> list[Step]:
        path = f"/api/tasks/{part(task_id, 'task_id')}/steps"
        return (await self._get(path, StepList, after=after, limit=limit)).steps

    async def begin_step(self, token: str, name: str) -> Step:
        path, text = of_claim(token, "steps/begin")
        return await self._post(path, Step, {"token": text, "name": name})

    async def complete_step(
        self, token: str, name: str, result: Any = None, usage: Usage | Mapping[str, Any] | None = None
    ) -> Step:
        path, text = of_claim(token, "steps")
        used = None if usage is None else check.read(usage, Usage, "usage")
        return await self._post(path, Step, {"token": text, "name": name, "result": result, **given(usage=used)})

    # -- effects ---------------------------------------------------------------------------------------------------

    async def begin_effect(self, token: str, name: str | None = None, *, key: str | None = None) -> Effect:
        path, text = of_claim(token, "effects/begin")
        return await self._once(path, Effect, {"token": text, **given(name=name, key=key)})

    async def finish_effect(self, token: str, key: str, result: Any = None, *, happened: bool = True) -> Effect:
        path, text = of_claim(token, "effects/finish")
        body = {"token": text, "key": key, "result": result, "happened": happened}
        return await self._post(path, Effect, body, key=None if happened else new_key())  # what is done stays done

    async def resolve_effect(self, key: str, *, happened: bool, result: Any = None, note: str | None = None) -> Effect:
        body = {"key": key, "happened": happened, "result": result, **given(note=note)}
        return await self._once("/api/effects/resolve", Effect, body)

    async def effects(
        self,
        task_id: str | None = None,
        *,
        key: str | None = None,
        open_only: bool = False,
        after: str = "",
        limit: int = 100,
    ) -> list[Effect]:
        path = "/api/effects" if task_id is None else f"/api/tasks/{part(task_id, 'task_id')}/effects"
        query: dict[str, Any] = {"open_only": open_only or None, "after": after or None, "limit": limit}
        return (await self._get(path, EffectList, key=key, **query)).effects
