"""Fair share: which share a task belongs to, and which share's turn it is."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shiftwork.settings.model import FairShare

Share = int | None
"""One share of the work; None is the share of tasks submitted while fair share was off."""

TAG = "tag:"


def is_on(settings: FairShare) -> bool:
    return settings.by != "none"


def share_of(settings: FairShare, created_by: str | None, issue_id: str | None, tags: Iterable[str]) -> Share:
    """The share of a task. All tasks without a key are in one share."""
    if not is_on(settings):
        return None
    key = _key(settings.by, created_by, issue_id, tags)
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % settings.shares


def _key(by: str, created_by: str | None, issue_id: str | None, tags: Iterable[str]) -> str:
    if by == "created_by":
        return created_by or ""
    if by == "issue_id":
        return issue_id or ""
    prefix = by.removeprefix(TAG)
    return min((tag for tag in tags if tag.startswith(prefix)), default="")


def next_of(round_robin: Sequence[Share], waiting: Collection[Share]) -> Share:
    """The waiting share that was served longest ago; one that was never served comes first."""
    never = [each for each in waiting if each not in round_robin]
    if never:
        return min(never, key=_number)
    return next(each for each in round_robin if each in waiting)


def _number(each: Share) -> int:
    return -1 if each is None else each


def after(round_robin: Sequence[Share], served: Share) -> list[Share]:
    """The order after this share has been served: it moves to the end."""
    return [*(each for each in round_robin if each != served), served]
