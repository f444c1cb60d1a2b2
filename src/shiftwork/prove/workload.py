"""The fleet's workload: plain tasks, tasks with steps and effects, and parents that wait for subtasks.

Two files are the outside world: `world` has a line for each look and each act, `thoughts` one for each step that was
begun or stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PLAIN, STEPS, PARENT, PROBE, SOAK = "plain", "steps", "parent", "probe", "soak"
SUBTASKS = 2
TREE_BUDGET_USD = 5.0


def type_of(number: int) -> str:
    """One task in 200 is a parent, one in 40 has a step and an effect: these take as long as many plain tasks."""
    return PARENT if number % 200 == 0 else STEPS if number % 40 == 0 else PLAIN


def task(number: int, key: str) -> dict[str, Any]:
    budget = {"tree_budget_usd": TREE_BUDGET_USD} if type_of(number) == PARENT else {}
    return {"type": type_of(number), "payload": {"number": number}, "idempotency_key": key, **budget}


def thoughts_of(world: Path) -> Path:
    return world.with_name("thoughts")
