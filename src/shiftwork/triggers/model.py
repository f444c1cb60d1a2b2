"""Triggers: a schedule, webhook, file, finished DAG or event, and the task or DAG it creates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shiftwork.model.task import Fields, Name
from shiftwork.triggers.templates import Parameter

Missed = Literal["one", "skip", "all"]
Overlap = Literal["allow", "skip", "replace"]
Signature = Literal["standard", "github", "slack"]
DagEnd = Literal["completed", "failed", "cancelled"]
FileChange = Literal["added", "changed", "removed"]
Where = dict[Name, Any]
"""By its place in what happened (`payload.action`): the value there, a list of possible ones, or {"contains": text}."""


class Cron(Fields, tag="cron", tag_field="kind"):
    """At the times a cron expression says, on the clocks of a time zone."""

    at: Annotated[str, Meta(min_length=1, max_length=200)]
    zone: Annotated[str, Meta(min_length=1, max_length=100)] = "UTC"
    missed: Missed = "one"
    """What is done about times at which no server ran: fire once for all of them, not at all, or for each."""
    jitter_sec: Annotated[float, Meta(ge=0, le=86_400)] = 0
    """Each schedule is late by the same part of this, so that not all start at once."""


class Hook(Fields, tag="hook", tag_field="kind"):
    """When someone posts to `/api/hooks/NAME`, signed with the trigger's secret."""

    signature: Signature = "standard"
    where: Where = {}


class Files(Fields, tag="file", tag_field="kind"):
    """When the content of files changes in the folder that a server watches."""

    pattern: Annotated[str, Meta(min_length=1, max_length=1000)]
    changes: Annotated[tuple[FileChange, ...], Meta(min_length=1)] = ("added", "changed")


class DagEnds(Fields, tag="dag", tag_field="kind"):
    """When a DAG whose title fits a pattern such as `nightly *` comes to an end."""

    title: Annotated[str, Meta(min_length=1, max_length=1000)]
    ends: Annotated[tuple[DagEnd, ...], Meta(min_length=1)] = ("completed",)


class Happens(Fields, tag="event", tag_field="kind"):
    """When the queue tells one of these events."""

    events: Annotated[list[Name], Meta(min_length=1)]
    where: Where = {}


Source = Cron | Hook | Files | DagEnds | Happens
Kind = Literal["cron", "hook", "file", "dag", "event"]


class NewTrigger(Fields):
    """A trigger to be saved: what it waits for, and the task or DAG it creates then.

    Texts in the task or DAG may name parameters as `{{ name }}`.
    """

    on: Source
    task: dict[str, Any] | None = None
    dag: dict[str, Any] | None = None
    parameters: dict[str, Parameter] = {}
    overlap: Overlap = "allow"
    """What is done while the work of an earlier firing has not ended: fire all the same, do not, or cancel it first."""


class Trigger(msgspec.Struct, frozen=True):
    """A trigger as a reader sees it; the secret of a hook is never shown."""

    name: str
    workspace_id: str
    on: Source
    task: dict[str, Any] | None
    dag: dict[str, Any] | None
    parameters: dict[str, Parameter]
    overlap: Overlap
    created_at: float
    created_by: str
    updated_at: float
    paused_at: float | None = None
    next_at: float | None = None
    """When a schedule fires next, its jitter included."""
    fired: int = 0
    last_fired_at: float | None = None


class SavedTrigger(msgspec.Struct, frozen=True):
    """A trigger just saved; a secret that was made for it is seen here and never again."""

    trigger: Trigger
    secret: str | None = None

    def __repr__(self) -> str:
        """Without the secret, which must not appear in a log or a traceback."""
        return f"SavedTrigger({self.trigger.name!r})"


class Firing(msgspec.Struct, frozen=True):
    """One time that a trigger went off, and what it created or why it did not."""

    trigger: str
    key: str
    """What it went off for: a tick, a delivery, a file, an event. For one key it fires once."""
    at: float
    outcome: Literal["fired", "skipped"]
    reason: str | None = None
    tasks: list[str] = []
    dag_id: str | None = None
    duplicate: bool = False
    """It already fired for this: this was the outcome."""


class Preview(msgspec.Struct, frozen=True):
    """What a trigger would create, and when it fires next."""

    trigger: str
    task: dict[str, Any] | None = None
    dag: dict[str, Any] | None = None
    next: list[float] = []
