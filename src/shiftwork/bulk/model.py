"""What is changed about many tasks, and how it went."""

from __future__ import annotations

from typing import Literal

import msgspec

from shiftwork.model.outcome import Outcome

Action = Literal["cancel", "retry", "set_priority", "purge"]


class BulkPage(msgspec.Struct, frozen=True):
    """What became of one page of a bulk change."""

    action: Action
    counts: dict[str, int]
    """By state: with `dry_run` the tasks that match, else those of this page that were changed."""
    changed: int
    skipped: int
    """Tasks that matched when they were looked for, and could not be changed any more."""
    refused: list[Outcome]
    """The first of those, each with its reason."""
    next: str | None
    """Where the following page begins; None after the last."""
    as_of: float
    """Tasks created later are left alone. Send it with the following page."""
    index_lag: int = 0
    """Events that a search did not see yet; 0 where it missed nothing."""


class BulkResult(msgspec.Struct, frozen=True):
    """What became of a bulk change. With `dry_run` nothing was changed, and `matched` says how many would be."""

    action: Action
    dry_run: bool
    matched: int
    counts: dict[str, int]
    """By state, as they were before."""
    changed: int = 0
    skipped: int = 0
    refused: list[Outcome] = []
    """The first of those skipped, each with its reason."""
