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
"""Conditions by path in the cause (`payload.action`): a value, a list of possible values, or {"contains": text}."""


class Cron(Fields, tag="cron", tag_field="kind"):
    """At the times of a cron expression in a time zone."""

    at: Annotated[str, Meta(min_length=1, max_length=200)]
    zone: Annotated[str, Meta(min_length=1, max_length=100)] = "UTC"
    missed: Missed = "one"
    """What to do about times at which no server ran: fire once for all of them, not at all, or for each."""
    jitter_sec: Annotated[float, Meta(ge=0, le=86_400)] = 0
    """Delays each schedule by a fixed fraction of this, so that not all start at once."""


class Hook(Fields, tag="hook", tag_field="kind"):
    """When someone posts to `/api/hooks/NAME`, signed with the trigger's secret."""

    signature: Signature = "standard"
    where: Where = {}


class Files(Fields, tag="file", tag_field="kind"):
    """When the content of files changes in the folder that a server watches."""

    pattern: Annotated[str, Meta(min_length=1, max_length=1000)]
    changes: Annotated[tuple[FileChange, ...], Meta(min_length=1)] = ("added", "changed")


class DagEnds(Fields, tag="dag", tag_field="kind"):
    """When a DAG ends whose title matches a pattern such as `nightly *`."""

    title: Annotated[str, Meta(min_length=1, max_length=1000)]
    ends: Annotated[tuple[DagEnd, ...], Meta(min_length=1)] = ("completed",)


class Happens(Fields, tag="event", tag_field="kind"):
    """When the queue emits one of these events."""

    events: Annotated[list[Name], Meta(min_length=1)]
    where: Where = {}


Source = Cron | Hook | Files | DagEnds | Happens
Kind = Literal["cron", "hook", "file", "dag", "event"]


class NewTrigger(Fields):
    """A trigger to save: what it waits for, and the task or DAG that it creates.

    Texts in the task or DAG can name parameters as `{{ name }}`.
    """

    on: Source
    task: dict[str, Any] | None = None
    dag: dict[str, Any] | None = None
    parameters: dict[str, Parameter] = {}
    overlap: Overlap = "allow"
    """What to do while the work of an earlier firing has not ended: fire anyway, skip, or cancel that work first."""


class Trigger(msgspec.Struct, frozen=True):
    """A trigger, without the secret of a hook."""

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
    """A saved trigger. A generated secret is only returned here."""

    trigger: Trigger
    secret: str | None = None

    def __repr__(self) -> str:
        """Without the secret, which must not appear in a log or a traceback."""
        return f"SavedTrigger({self.trigger.name!r})"


class Firing(msgspec.Struct, frozen=True):
    """One firing of a trigger: what it created, or why it was skipped."""

    trigger: str
    key: str
    """The occasion: a tick, a delivery, a file, an event. A trigger fires once per key."""
    at: float
    outcome: Literal["fired", "skipped"]
    reason: str | None = None
    tasks: list[str] = []
    dag_id: str | None = None
    duplicate: bool = False
    """Whether the trigger had already fired for this key, with this outcome."""


class Preview(msgspec.Struct, frozen=True):
    """What a trigger would create, and when it fires next."""

    trigger: str
    task: dict[str, Any] | None = None
    dag: dict[str, Any] | None = None
    next: list[float] = []
