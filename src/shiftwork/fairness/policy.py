"""The rules of fairness: shares and turns, serial keys, preemption, and how long a task waits for a better agent."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shiftwork.engine.rank import Parts
    from shiftwork.settings.model import FairShare, Settings

Share = int | None
"""One share of the work; None is the share of tasks submitted while fair share was off."""

TAG = "tag:"


def is_fair_share_on(settings: FairShare) -> bool:
    return settings.by != "none"


def share_of(settings: FairShare, created_by: str | None, issue_id: str | None, tags: Iterable[str]) -> Share:
    """The share of a task. All tasks without a key are in one share."""
    if not is_fair_share_on(settings):
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


def next_share(round_robin: Sequence[Share], waiting: Collection[Share]) -> Share:
    """The waiting share that was served longest ago; one that was never served comes first."""
    never = [each for each in waiting if each not in round_robin]
    if never:
        return min(never, key=_number)
    return next(each for each in round_robin if each in waiting)


def _number(each: Share) -> int:
    return -1 if each is None else each


def after_serving(round_robin: Sequence[Share], served: Share) -> list[Share]:
    """The order after this share has been served: it moves to the end."""
    return [*(each for each in round_robin if each != served), served]


SerialKind = Literal["agent_type", "key"]


def serial_kind(serialize_by: SerialKind | None, serial_key: str | None) -> SerialKind | None:
    """The kind of key that serializes a task; a task without a key runs in parallel with all others."""
    return None if serialize_by == "key" and serial_key is None else serialize_by


def serial_key_of(by: SerialKind, type_: str, serial_key: str | None) -> str:
    """The key, in which a type and a caller's key never collide."""
    return f"type:{type_}" if by == "agent_type" else f"key:{serial_key}"


class RunningTask(NamedTuple):
    """A running task as preemption sees it."""

    id: str
    parts: Parts
    claimed_at: float


def least_urgent(running: Iterable[RunningTask], urgent: Parts) -> RunningTask | None:
    """The least urgent of the tasks less urgent than this one; among equals the youngest, which loses least work."""
    able = [each for each in running if not each.parts.urgent and each.parts.effective > urgent.effective]
    return max(able, key=lambda each: (each.parts.effective, each.claimed_at, each.id), default=None)


MAX_WAIT_SEC = 30.0
ASKING_SEC = 60.0
"""An agent counts as claiming if its last claim or its registration is no older than this."""


def wait_until(ready_since: float, settings: Settings) -> float:
    """When any able agent may take the task. Each claiming agent makes at least one claim in this time."""
    return ready_since + min(MAX_WAIT_SEC, settings.heartbeat_interval_sec)
