"""Decides the status of an effect begun under the same key, and whether steps are still valid after a change."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from shiftwork.model.states import FINAL

_WORK = ("title", "tool_name", "payload", "spec", "output")
"""Fields of a body that define the work."""

Standing = Literal["done", "in_flight", "unknown"]


class Owner(NamedTuple):
    """The task that began the action, as seen by the claim that asks."""

    status: str | None
    """None if it no longer exists."""
    asks: bool
    """Whether it is the asking task itself."""
    holds: bool
    """Whether the claim that began the action is still valid."""


def status_of(owner: Owner, *, done: bool) -> Standing:
    """Whether the effect is done, in flight, or unknown, because its claim can no longer report.

    A retry of the owner finds out what happened; other tasks do so only if the owner never will.
    """
    if done:
        return "done"
    if owner.asks:
        return "unknown"
    gone = owner.status is None or owner.status in FINAL
    return "unknown" if gone and not owner.holds else "in_flight"


def is_same_work(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether two bodies of a task describe the same work; agents, times and costs do not count."""
    return _work(before) == _work(after)


def _work(body: dict[str, Any]) -> dict[str, Any]:
    spec = {name: value for name, value in (body.get("spec") or {}).items() if name != "constraints"}
    return {name: body.get(name) or None for name in _WORK} | {"spec": spec}
