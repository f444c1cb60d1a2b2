"""Decides what a claim gets for an effect that was begun under the same key."""

from __future__ import annotations

from typing import Literal, NamedTuple

from shiftwork.model.states import FINAL

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
    """Done, being done, or left by someone who cannot say any more.

    The owner itself comes back to find out; others take it up only when the owner never will.
    """
    if done:
        return "done"
    if owner.asks:
        return "unknown"
    gone = owner.status is None or owner.status in FINAL
    return "unknown" if gone and not owner.holds else "in_flight"
