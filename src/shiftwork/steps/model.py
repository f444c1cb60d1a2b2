"""Steps and effects, as callers see them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shiftwork.model import ids

MAX_KEY_LENGTH = 600
"""The length of an idempotency key and a name, with room for escapes."""


class Step(msgspec.Struct, frozen=True):
    """A step of a task. Interrupted: the attempt that began it has ended without a result."""

    name: str
    status: Literal["done", "in_flight", "interrupted"]
    place: int
    fence: int
    result: Any
    """Also None if it is in an artifact and was listed with others."""
    artifact: str | None
    began_at: float
    done_at: float | None
    cost_usd: float
    tokens_in: int
    tokens_out: int


class Effect(msgspec.Struct, frozen=True):
    """An outside action. New: the caller performs it; unknown: it was begun, and its outcome is not known."""

    key: str
    status: Literal["new", "done", "in_flight", "unknown", "withdrawn"]
    task_id: str
    fence: int
    begun_by: str
    """The claim that recorded the intent."""
    began_at: float
    done_at: float | None = None
    result: Any = None
    resolved_by: str | None = None
    """The person who recorded its outcome."""

    @property
    def token(self) -> str:
        """The claim that may perform it, for outside systems that can refuse older ones."""
        return ids.token(self.task_id, self.fence)
