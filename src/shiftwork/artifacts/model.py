"""Artifacts and inputs as they are shown."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["input", "made", "result", "step"]


class Artifact(msgspec.Struct, frozen=True):
    """Stored content: what it is, and who brought it first."""

    id: str
    size: int
    media_type: str
    created_at: float
    created_by: str


class Attached(msgspec.Struct, frozen=True):
    """An artifact as a task refers to it: an input, made under it, in its result, or the result of a step."""

    id: str
    size: int
    media_type: str
    role: Role
    name: str | None
    at: float
    by: str


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reference of a task as its agent gets it."""

    ref: str
    kind: Literal["artifact", "output"]
    id: str
    """The artifact's id, or that of the task whose output it is."""
    size: int | None = None
    """In bytes, of an output as JSON; None where there is nothing any more, or nothing yet."""
    media_type: str | None = None
    status: str | None = None
    """Of the task whose output it is; None once it was purged."""
    inline: bool = False
    """Whether an output stands here; else the result of its task tells it."""
    data: Any = None
    text: str | None = None
    artifacts: list[str] = []
    reason: str | None = None
    """Why the task whose output it is failed or was cancelled, where this one went on without."""
    error: str | None = None
