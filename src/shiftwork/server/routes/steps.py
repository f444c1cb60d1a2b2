"""Durable execution: steps that outlive an attempt, and effects that happen once."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from shiftwork.core.errors import EffectInFlight, FenceRequired, LeaseLost, NotFound, NotYourClaim, WrongState
from shiftwork.queue.durable.effects import Effect
from shiftwork.queue.durable.steps import Step
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors, PageSize, Query
from shiftwork.wire.steps import (
    BeginEffectBody,
    BeginStepBody,
    EffectList,
    FinishEffectBody,
    ResolveBody,
    StepBody,
    StepList,
)

door = Doors("Steps and effects")
HOLDING = (NotFound, LeaseLost, WrongState, FenceRequired, NotYourClaim)


class StepQuery(Query):
    """Which page of the steps."""

    after: Annotated[int, Meta(ge=0)] = 0
    limit: PageSize = 100


@door("GET /api/tasks/{task_id}/steps", "read", query=StepQuery, answer=StepList, errors=(NotFound,))
async def steps(ask: Ask) -> Any:
    """The steps of a task in their order: go on `after` the place of the last."""
    return StepList(await ask.queue.steps(ask.path["task_id"], after=ask.query.after, limit=ask.query.limit))


@door("POST /api/tasks/{task_id}/steps/begin", "work", body=BeginStepBody, answer=Step, errors=HOLDING)
async def begin_step(ask: Ask, body: BeginStepBody) -> Any:
    """The step with its result, if this or an earlier attempt has done it; else it is in flight from now on."""
    return await ask.queue.begin_step(await ask.token(body), body.name)


@door("POST /api/tasks/{task_id}/steps", "work", body=StepBody, answer=Step, errors=HOLDING)
async def complete_step(ask: Ask, body: StepBody) -> Any:
    """Store the result of a step with what it cost. The first result stands, however often one is sent."""
    return await ask.queue.complete_step(await ask.token(body), body.name, body.result, body.usage)


class EffectQuery(Query):
    """Which effects."""

    key: str | None = None
    open_only: bool = False
    after: str = ""
    limit: PageSize = 100


@door("GET /api/effects", "read", query=EffectQuery, answer=EffectList)
async def effects(ask: Ask) -> Any:
    """Effects in the order of their keys: all, one by its key, or those that are not known to be done."""
    return EffectList(await _effects(ask, None))


@door("GET /api/tasks/{task_id}/effects", "read", query=EffectQuery, answer=EffectList, errors=(NotFound,))
async def task_effects(ask: Ask) -> Any:
    """The effects that a task has begun or must find out about."""
    return EffectList(await _effects(ask, ask.path["task_id"]))


async def _effects(ask: Ask, task_id: str | None) -> list[Effect]:
    query = ask.query
    page = {"after": query.after, "limit": query.limit}
    return await ask.queue.effects(task_id, key=query.key, open_only=query.open_only, **page)


@door("POST /api/tasks/{task_id}/effects/begin", "work", body=BeginEffectBody, answer=Effect, errors=HOLDING)
async def begin_effect(ask: Ask, body: BeginEffectBody) -> Any:
    """Write down the intent to act outside. Only where the answer's status is `new` is it the caller's to do.

    `done` comes with the result; `in_flight`: another task is at it; `unknown`: find out, then finish it.
    """
    return await ask.queue.begin_effect(await ask.token(body), body.name, key=body.key)


@door("POST /api/tasks/{task_id}/effects/finish", "work", body=FinishEffectBody, answer=Effect, errors=HOLDING)
async def finish_effect(ask: Ask, body: FinishEffectBody) -> Any:
    """Say how an effect ended that was begun under this claim; with `happened` false it may be tried again."""
    return await ask.queue.finish_effect(await ask.token(body), body.key, body.result, happened=body.happened)


@door(
    "POST /api/effects/resolve",
    "operate",
    body=ResolveBody,
    answer=Effect,
    errors=(NotFound, WrongState, EffectInFlight),
)
async def resolve_effect(ask: Ask, body: ResolveBody) -> Any:
    """Say of an unknown effect whether it happened. The task that failed over the question is tried again."""
    return await ask.queue.resolve_effect(body.key, happened=body.happened, result=body.result, note=body.note)
