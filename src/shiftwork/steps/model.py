"""Steps and effects as they are shown."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shiftwork.model import ids

MAX_KEY_LENGTH = 600
"""An idempotency key and a name, with room for what must be escaped between them."""


class Step(msgspec.Struct, frozen=True):
    """A step of a task. Interrupted: the attempt that began it has ended without a result."""

    name: str
    status: Literal["done", "in_flight", "interrupted"]
    place: int
    fence: int
    result: Any
    """None also where it is in an artifact and was read with others."""
    artifact: str | None
    began_at: float
    done_at: float | None
    cost_usd: float
    tokens_in: int
    tokens_out: int


class Effect(msgspec.Struct, frozen=True):
    """An outside action. New: it is the asker's to perform; unknown: it was begun, and no one can say how it ended."""

    key: str
    status: Literal["new", "done", "in_flight", "unknown", "withdrawn"]
    task_id: str
    fence: int
    begun_by: str
    """The claim that wrote down the intent."""
    began_at: float
    done_at: float | None = None
    result: Any = None
    resolved_by: str | None = None
    """The person who said how it ended."""

    @property
    def token(self) -> str:
        """The claim that may perform it, for an outside that can refuse older ones."""
        return ids.token(self.task_id, self.fence)
