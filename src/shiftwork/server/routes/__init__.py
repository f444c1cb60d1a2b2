"""Every operation of the API, by group."""

from __future__ import annotations

from shiftwork.server import derived
from shiftwork.server.door import Door
from shiftwork.server.routes import (
    access,  # noqa: F401  # registers its handler
    artifacts,  # noqa: F401  # registers its handlers
    health,
    metrics,
    testing,
)

# A fixed path is before one with a parameter in its place: the first that fits answers.
DOORS: list[Door] = [door for group in (health, metrics, testing) for door in group.door.all]
DOORS += derived.doors()
