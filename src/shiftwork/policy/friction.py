"""When failures are more than bad luck: the share of a type's attempts that may fail, and what is asked about it."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from shiftwork.core.settings import FrictionTask
from shiftwork.core.task import NewTask


class Ended(NamedTuple):
    """How many attempts ended, and how many of them failed."""

    failed: int
    ended: int

    @property
    def rate(self) -> float:
        return self.failed / self.ended if self.ended else 0.0


def is_too_high(ended: Ended, rate: float, least: int) -> bool:
    """Whether a share of failures is reached, over enough attempts to mean something."""
    return ended.ended >= least and ended.rate >= rate


def task_about(create: FrictionTask, signature: str, what: dict[str, Any]) -> NewTask:
    """The task that somebody asked for about a friction; there is one of it at a time."""
    return NewTask(
        type=create.type,
        title=create.title.replace("{type}", str(what["type"])),
        priority=create.priority,
        payload={**create.payload, "friction": {"signature": signature, **what}},
        created_by="friction",
        idempotency_key=f"friction:{hashlib.sha256(signature.encode()).hexdigest()[:32]}",
        settings={"idempotency": {"source": "caller", "window_sec": None, "on_duplicate": "return_existing"}},
    )
