"""Deduplication: the idempotency key, its scope, and merging two submissions."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from shiftwork.model.errors import IdempotencyKeyRequired
from shiftwork.model.states import WAITING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shiftwork.settings.model import Idempotency


class Mergeable(NamedTuple):
    """The fields of a task that a duplicate may change."""

    priority: float
    tags: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()


def task_key(
    idempotency: Idempotency,
    *,
    given: str | None,
    type: str,  # the word that submitters use
    payload: Any,
    named: bool = False,
    dependencies: Sequence[str] = (),
) -> str | None:
    """The key under which a task is unique, or None if it has none.

    Tasks with equal content are duplicates only if nothing distinguishes them: a task with an id of its own (`named`)
    is never a duplicate, nor is one that waits for other tasks.
    """
    if idempotency.source == "none":
        return None
    if idempotency.source == "payload_hash":
        return _digest(payload)
    if given:
        return given
    if idempotency.source == "params_hash":
        above = {"dependencies": sorted(set(dependencies))} if dependencies else {}
        return None if named else _digest({"payload": payload, "type": type, **above})
    if idempotency.source == "required":
        raise IdempotencyKeyRequired("the task has no idempotency_key", where="idempotency_key")
    return None


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def in_scope(idempotency: Idempotency, status: str) -> bool:
    """Whether a task in this state still holds its key."""
    return status in idempotency.scope_states


def until(idempotency: Idempotency, now: float) -> float | None:
    """When a key taken now is free again; None is never."""
    return None if idempotency.window_sec is None else now + idempotency.window_sec


def may_merge(status: str) -> bool:
    """A duplicate changes a task only while no one holds it."""
    return status in WAITING


def merge(existing: Mergeable, duplicate: Mergeable) -> Mergeable:
    """The existing task with the more urgent priority of the two and the requirements of both."""
    return Mergeable(
        priority=min(existing.priority, duplicate.priority),
        tags=_union(existing.tags, duplicate.tags),
        dependencies=_union(existing.dependencies, duplicate.dependencies),
    )


def _union(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
