"""Explains why agents that could take a task do not: offline, silent, full or out of budget."""

from __future__ import annotations

from collections.abc import Sequence

from shiftwork.budgets import policy as budget
from shiftwork.budgets.allocator import HOLD as HELD_BY_BUDGET
from shiftwork.model.task import dollars
from shiftwork.observe.model import Blocker
from shiftwork.store.store import Row

REGISTER = "register an agent that has what it needs"


def active(able: Sequence[Row]) -> list[Row]:
    """The able agents that may take work."""
    return [agent for agent in able if agent["status"] == "active"]


def blockers(willing: Sequence[Row], estimated_cost: int | None) -> list[Blocker]:
    """Why none of these active agents takes such a task; none if one could."""
    if not willing:
        what = "every agent that could take it is draining, offline or failed"
        return [Blocker("agents_away", what, "set one active")]
    if all(is_full(agent) for agent in willing):
        what = "every agent that could take it is at capacity"
        return [Blocker("capacity", what, "one of them finishes, or another joins")]
    if all(_is_short(agent, estimated_cost) for agent in willing):
        left = f"{dollars(estimated_cost):.2f} USD" if estimated_cost else "money"
        return [Blocker(HELD_BY_BUDGET, f"no able agent has {left} left", "raise an agent's budget")]
    return []


def is_full(agent: Row) -> bool:
    limit = agent["max_concurrent_tasks"]
    return limit is not None and agent["current_tasks"] >= limit


def _is_short(agent: Row, cost: int | None) -> bool:
    left = budget.left(agent["budget"], agent["spent"], agent["granted"])
    return left is not None and budget.grant(cost, 1, [left]) is None


def needs(type_: str, capabilities: Sequence[str], target: str | None) -> str:
    """What an agent must have or be, in words."""
    wanted = [f"type {type_}", *(f"capability {name}" for name in capabilities)]
    return ", ".join([*wanted, f"being agent {target}"] if target else wanted)
