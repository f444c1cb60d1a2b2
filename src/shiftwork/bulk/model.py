"""Bulk changes and their results."""

from __future__ import annotations

from typing import Literal

import msgspec

from shiftwork.model.outcome import Outcome

Action = Literal["cancel", "retry", "set_priority", "purge"]


class BulkPage(msgspec.Struct, frozen=True):
    """The result of one page of a bulk change."""

    action: Action
    counts: dict[str, int]
    """By state: with `dry_run` the matching tasks, otherwise those of this page that were changed."""
    changed: int
    skipped: int
    """Tasks that matched at first, but could no longer be changed."""
    refused: list[Outcome]
    """The first of those, each with its reason."""
    next: str | None
    """Where the following page begins; None after the last."""
    as_of: float
    """Tasks created later are not changed. Send it with the following page."""
    index_lag: int = 0
    """Events not yet in the search index; 0 if it is up to date."""


class BulkResult(msgspec.Struct, frozen=True):
    """The result of a bulk change. With `dry_run` nothing was changed, and `matched` says how many would be."""

    action: Action
    dry_run: bool
    matched: int
    counts: dict[str, int]
    """By previous state."""
    changed: int = 0
    skipped: int = 0
    refused: list[Outcome] = []
    """The first skipped tasks, each with its reason."""
