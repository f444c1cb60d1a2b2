"""Every operation of the API, by group."""

from __future__ import annotations

from shiftwork.server.door import Door
from shiftwork.server.routes import (
    access,
    agents,
    artifacts,
    bridges,
    budgets,
    dags,
    events,
    health,
    letters,
    metrics,
    operating,
    protection,
    quotas,
    settings,
    sinks,
    snapshots,
    steps,
    tasks,
    testing,
    triggers,
    waiting,
    working,
)

# A fixed path stands before one with a parameter in its place: the first that fits answers.
DOORS: list[Door] = [
    door
    for group in (
        health,
        working,
        waiting,
        steps,
        artifacts,
        tasks,
        dags,
        agents,
        letters,
        operating,
        protection,
        budgets,
        sinks,
        triggers,
        bridges,
        snapshots,
        quotas,
        metrics,
        settings,
        events,
        access,
        testing,
    )
    for door in group.door.all
]
