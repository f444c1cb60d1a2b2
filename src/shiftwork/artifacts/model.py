"""Artifacts and inputs, as callers see them."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["input", "made", "result", "step"]


class Artifact(msgspec.Struct, frozen=True):
    """Stored content: its size, its media type, and who added it first."""

    id: str
    size: int
    media_type: str
    created_at: float
    created_by: str


class Attached(msgspec.Struct, frozen=True):
    """A task's reference to an artifact: an input, an upload under a claim, or part of a result or a step."""

    id: str
    size: int
    media_type: str
    role: Role
    name: str | None
    at: float
    by: str
