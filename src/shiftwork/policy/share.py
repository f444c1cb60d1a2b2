"""Fair share: which bucket a task belongs to, and whose turn it is when a claim deals round the buckets."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shiftwork.core.settings import FairShare

Bucket = int | None
"""One share of the work; None holds what was submitted while nothing was shared."""

TAG = "tag:"


def is_on(settings: FairShare) -> bool:
    return settings.by != "none"


def bucket(settings: FairShare, created_by: str | None, issue_id: str | None, tags: Iterable[str]) -> Bucket:
    """The share of a task. What has no key shares one with whatever else has none."""
    if not is_on(settings):
        return None
    key = _key(settings.by, created_by, issue_id, tags)
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % settings.buckets


def _key(by: str, created_by: str | None, issue_id: str | None, tags: Iterable[str]) -> str:
    if by == "created_by":
        return created_by or ""
    if by == "issue_id":
        return issue_id or ""
    prefix = by.removeprefix(TAG)
    return min((tag for tag in tags if tag.startswith(prefix)), default="")


def next_of(turns: Sequence[Bucket], waiting: Collection[Bucket]) -> Bucket:
    """Of the buckets that wait, the one that was served longest ago; one that never was comes first."""
    never = [each for each in waiting if each not in turns]
    if never:
        return min(never, key=_number)
    return next(each for each in turns if each in waiting)


def _number(each: Bucket) -> int:
    return -1 if each is None else each


def after(turns: Sequence[Bucket], served: Bucket) -> list[Bucket]:
    """Whose turn it is once this bucket has been served: it goes to the end."""
    return [*(each for each in turns if each != served), served]
