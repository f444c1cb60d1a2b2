"""Triggers: what starts work by itself; and hooks, at which others may knock."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from shiftwork.core.errors import (
    CircularDependency,
    ConflictError,
    HookRefused,
    Malformed,
    NotFound,
    QueueFull,
    QuotaExceeded,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    TooManyRequests,
    UnknownDependency,
    UnknownReference,
    UnknownSetting,
)
from shiftwork.core.trigger import Fire, Firing, NewTrigger, Preview, SavedTrigger, Trigger
from shiftwork.server import reading
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors, PageSize, Query, Raw
from shiftwork.wire.protection import Removed
from shiftwork.wire.triggers import FiringList, TriggerBody, TriggerList

door = Doors("Triggers")
_NOT_SUBMITTED = (UnknownReference, UnknownSetting)


class TriggerQuery(Query):
    """A page of them."""

    after: Annotated[str, Meta(max_length=255)] = ""
    limit: PageSize = 100


class FiringQuery(Query):
    """How many."""

    limit: PageSize = 20


@door("GET /api/triggers", "read", query=TriggerQuery, answer=TriggerList)
async def list_triggers(ask: Ask) -> Any:
    """Every trigger, by name; `after` goes on behind one."""
    return TriggerList(await ask.queue.triggers(after=ask.query.after, limit=ask.query.limit))


@door("GET /api/triggers/{name}", "read", answer=Trigger, errors=(NotFound,))
async def get_trigger(ask: Ask) -> Any:
    """One trigger: what it waits for, what it creates, and when a schedule fires next."""
    return await ask.queue.trigger(ask.path["name"])


@door(
    "PUT /api/triggers/{name}",
    "operate",
    body=TriggerBody,
    answer=SavedTrigger,
    errors=(*_NOT_SUBMITTED, CircularDependency, ConflictError),
)
async def save_trigger(ask: Ask, body: TriggerBody) -> Any:
    """Add a trigger, or change the one of this name. A secret made for a hook is answered once and never again."""
    new = NewTrigger(on=body.on, task=body.task, dag=body.dag, parameters=body.parameters, overlap=body.overlap)
    return await ask.queue.save_trigger(ask.path["name"], new, secret=body.secret)


@door("DELETE /api/triggers/{name}", "operate", answer=Removed)
async def remove_trigger(ask: Ask) -> Any:
    """Forget a trigger with its firings; what it created stays. False where there was none."""
    return Removed(await ask.queue.remove_trigger(ask.path["name"]))


@door("POST /api/triggers/{name}/pause", "operate", answer=Trigger, errors=(NotFound,))
async def pause_trigger(ask: Ask) -> Any:
    """Let a trigger fire no more until it is resumed; what happens meanwhile is nothing to it."""
    return await ask.queue.pause_trigger(ask.path["name"])


@door("POST /api/triggers/{name}/resume", "operate", answer=Trigger, errors=(NotFound,))
async def resume_trigger(ask: Ask) -> Any:
    """Let a trigger fire again, for what comes from now on."""
    return await ask.queue.resume_trigger(ask.path["name"])


@door("GET /api/triggers/{name}/firings", "read", query=FiringQuery, answer=FiringList, errors=(NotFound,))
async def list_firings(ask: Ask) -> Any:
    """The last times a trigger went off, with what it created or why it did not."""
    return FiringList(await ask.queue.firings(ask.path["name"], limit=ask.query.limit))


@door(
    "POST /api/triggers/{name}/fire",
    "submit",
    body=Fire,
    answer=Firing,
    errors=(
        *(NotFound, *_NOT_SUBMITTED, UnknownDependency, CircularDependency, ConflictError, QueueFull),
        *(QuotaExceeded, TooManyRequests),
    ),
)
async def fire_trigger(ask: Ask, body: Fire) -> Any:
    """Create now what a trigger creates: with these parameters, or from facts as its source would tell them."""
    return await ask.queue.fire_trigger(ask.path["name"], body)


@door("POST /api/triggers/{name}/preview", "read", body=Fire, answer=Preview, errors=(NotFound, *_NOT_SUBMITTED))
async def preview_trigger(ask: Ask, body: Fire) -> Any:
    """What a firing would create, without creating it, and the next times of a schedule."""
    return await ask.queue.preview_trigger(ask.path["name"], body)


@door(
    "POST /api/hooks/{name}",
    None,
    body=Raw,
    answer=Firing,
    errors=(
        *(HookRefused, Malformed, NotFound, *_NOT_SUBMITTED, UnknownDependency, CircularDependency, ConflictError),
        *(QueueFull, QuotaExceeded, TooManyRequests, StoreUnavailable, StoreFull, StoreReadOnly),
    ),
)
async def receive_hook(ask: Ask) -> Any:
    """Take what somebody else's program posts to a hook. No token is needed: the signature is the credential.

    The body is JSON, or a form; which headers sign it is said by the trigger. A delivery that came before is answered
    with what came of it then.
    """
    name = ask.path["name"]
    queue = ask.queue.in_workspace(ask.query.workspace or "default").as_caller(f"hook:{name}")
    return await queue.receive_hook(name, ask.request.headers, reading.stream(ask.request))
