"""Triggers, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from shiftwork.model.errors import (
    CircularDependency,
    ConflictError,
    HookRefused,
    InvalidPayload,
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
from shiftwork.model.task import Name, PageSize, Text
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import Accepts
from shiftwork.triggers.model import Firing, Overlap, Preview, SavedTrigger, Source, Trigger
from shiftwork.triggers.templates import Parameter

_NOT_SUBMITTED = (InvalidPayload, UnknownReference, UnknownSetting)
_SUBMITTED = (*_NOT_SUBMITTED, UnknownDependency, CircularDependency, ConflictError, QueueFull, QuotaExceeded)
On = Annotated[Source | Mapping[str, Any], Accepts(Source)]
Template = Annotated[Mapping[str, Any], Accepts(dict[str, Any])]
Parameters = Annotated[Mapping[str, Parameter | Mapping[str, Any]], Accepts(dict[str, Parameter])]
Values = Annotated[Mapping[str, Any], Accepts(dict[Name, Any])]


class Triggers(Namespace, name="triggers", group="Triggers"):
    """Triggers start work automatically: on schedules, webhooks, files, ends of DAGs, events."""

    @operation("PUT /api/triggers/{name}", "operate", errors=(*_NOT_SUBMITTED, CircularDependency, ConflictError))
    async def save(
        self,
        name: Name,
        *,
        on: On,
        task: Template | None = None,
        dag: Template | None = None,
        parameters: Parameters = {},
        overlap: Overlap = "allow",
        secret: Name | None = None,
    ) -> SavedTrigger:
        """Add a trigger, or change the one with this name. A secret generated for a hook is returned only here.

        Texts in the task or DAG can name parameters as `{{ name }}`. `secret` is for a hook, which otherwise keeps its
        own or gets a new one.
        """

    @operation("GET /api/triggers/{name}", "read", errors=(NotFound,))
    async def get(self, name: Name) -> Trigger:
        """Return one trigger: what it waits for, what it creates, and when a schedule fires next."""

    @operation("GET /api/triggers/{name}/firings", "read", envelope="firings", errors=(NotFound,))
    async def firings(self, name: Name, *, limit: PageSize = 20) -> list[Firing]:
        """Return the last firings of a trigger, with the tasks created or why there are none."""

    @operation("POST /api/triggers/{name}/pause", "operate", errors=(NotFound,))
    async def pause(self, name: Name) -> Trigger:
        """Pause a trigger until it is resumed; occasions in between are skipped."""

    @operation("POST /api/triggers/{name}/resume", "operate", errors=(NotFound,))
    async def resume(self, name: Name) -> Trigger:
        """Resume a trigger, from now on."""

    @operation("DELETE /api/triggers/{name}", "operate", envelope="removed")
    async def remove(self, name: Name) -> bool:
        """Remove a trigger and its firings; tasks it created stay. False if there is none."""

    @operation("POST /api/triggers/{name}/fire", "submit", errors=(NotFound, *_SUBMITTED, TooManyRequests))
    async def fire(
        self, name: Name, *, parameters: Values = {}, facts: Template = {}, reason: Text | None = None
    ) -> Firing:
        """Fire a trigger now: with these `parameters`, or with `facts` in the form of its source."""

    @operation("POST /api/triggers/{name}/preview", "read", errors=(NotFound, *_NOT_SUBMITTED), key="never")
    async def preview(
        self, name: Name, *, parameters: Values = {}, facts: Template = {}, reason: Text | None = None
    ) -> Preview:
        """Return what a firing would create, without creating it, and the next times of a schedule."""

    @operation("GET /api/triggers", "read", envelope="triggers")
    async def list(self, *, after: Annotated[str, Meta(max_length=255)] = "", limit: PageSize = 100) -> list[Trigger]:
        """Return triggers by name; `after` continues after one."""


class Hooks(Namespace, name="hooks", group="Triggers"):
    """Endpoints for other programs; served over HTTP only."""

    @operation(
        "POST /api/hooks/{name}",
        None,
        errors=(
            *(HookRefused, Malformed, NotFound, *_SUBMITTED, TooManyRequests),
            *(StoreUnavailable, StoreFull, StoreReadOnly),
        ),
        raw_body=True,
    )
    async def receive(self, name: Name) -> Firing:
        """Accept a request to a hook. No token is needed: the signature is the credential.

        The body is JSON or a form; the trigger says which headers sign it. A repeated delivery is answered with the
        result of the first.
        """
