"""The plan of a day: when work arrives, its kind, its amount, and its cost limit."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

HOUR = 3600.0
RUSHES = ((9 * HOUR, 0.3), (14 * HOUR, 0.3))
"""The hours of bursts, and their share of the day's work."""
RUSH_SEC = 900.0
TYPES = ("code", "review", "research", "test", "docs")
PRIORITIES = (5, 20, 50, 50, 50, 70, 90)
CALL_USD = 0.02
MAX_CALLS = 5
DAG_SIZE = 4
DAG_SHARE = 0.2


class Arrival(NamedTuple):
    """One task, or the tasks of a DAG, at a time of the day."""

    at: float
    tasks: list[dict[str, Any]]
    ceiling_usd: float | None = None


def plan(chance: random.Random, tasks: int, hours: float) -> list[Arrival]:
    """Return the arrivals of a day in order; most tasks come alone, some as a chain with its own cost ceiling."""
    arrivals: list[Arrival] = []
    left = tasks
    while left > 0:
        size = DAG_SIZE if chance.random() < DAG_SHARE else 1
        at = _time(chance, hours)
        made = [_task(chance, number) for number in range(min(size, left))]
        ceiling = (
            sum(task["estimated_cost_usd"] for task in made) * chance.choice((0.5, 1.0, 2.0)) if size > 1 else None
        )
        arrivals.append(Arrival(at, made, ceiling))
        left -= len(made)
    return sorted(arrivals, key=lambda arrival: arrival.at)


def _time(chance: random.Random, hours: float) -> float:
    roll = chance.random()
    for start, share in RUSHES:
        if roll < share:
            return (start + chance.uniform(0, RUSH_SEC)) * hours / 24
        roll -= share
    return chance.uniform(0, hours * HOUR)


def _task(chance: random.Random, number: int) -> dict[str, Any]:
    calls = chance.randint(1, MAX_CALLS)
    return {
        "type": chance.choice(TYPES),
        "key": str(number),
        "dependencies": [str(number - 1)] if number else [],
        "priority": chance.choice(PRIORITIES),
        "payload": {"calls": calls},
        "estimated_cost_usd": round(calls * CALL_USD, 4),
    }
