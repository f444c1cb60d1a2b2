"""Every operation of the API, by group."""

from __future__ import annotations

from shiftwork.server.door import Door
from shiftwork.server.routes import (
    access,
    agents,
    dags,
    events,
    health,
    letters,
    operating,
    settings,
    tasks,
    testing,
    working,
)

# A fixed path stands before one with a parameter in its place: the first that fits answers.
DOORS: list[Door] = [
    door
    for group in (health, working, tasks, dags, agents, letters, operating, settings, events, access, testing)
    for door in group.door.all
]
