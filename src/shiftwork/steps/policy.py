"""What a claim gets for an effect begun under the same key, and whether steps are still valid after a change."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from shiftwork.model.states import FINAL

_WORK = ("title", "tool_name", "payload", "spec", "output")
"""Fields of a body that say what is to be done."""

Standing = Literal["done", "in_flight", "unknown"]


class Owner(NamedTuple):
    """The task that began the action, as seen by the claim that asks."""

    status: str | None
    """None where it exists no more."""
    asks: bool
    """It is the task that asks."""
    holds: bool
    """The claim that began the action still holds."""


def status_of(owner: Owner, *, done: bool) -> Standing:
    """Whether it is done, in flight, or was left by a claim that can no longer report.

    The owner itself comes back to find out; others take it up only when the owner never will.
    """
    if done:
        return "done"
    if owner.asks:
        return "unknown"
    gone = owner.status is None or owner.status in FINAL
    return "unknown" if gone and not owner.holds else "in_flight"


def is_same_work(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether two bodies of a task describe the same work; who may do it, when and at what cost does not count."""
    return _work(before) == _work(after)


def _work(body: dict[str, Any]) -> dict[str, Any]:
    spec = {name: value for name, value in (body.get("spec") or {}).items() if name != "constraints"}
    return {name: body.get(name) or None for name in _WORK} | {"spec": spec}
