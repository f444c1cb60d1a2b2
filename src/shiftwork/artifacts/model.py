"""Artifacts and inputs as they are shown."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["input", "made", "result", "step"]


class Artifact(msgspec.Struct, frozen=True):
    """Stored content: its facts, and who added it first."""

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
