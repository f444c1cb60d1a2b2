"""The snapshot that `watch` reads from the queue and draws or prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from shiftwork.agents.model import Agent
    from shiftwork.model.history import Event
    from shiftwork.model.task import Task
    from shiftwork.observe.model import Alert, Status, WaitingWork


class LiveStatus(msgspec.Struct, frozen=True):
    """The queue's state, its running tasks, and recent events."""

    at: float
    status: Status
    running: list[Task]
    agents: list[Agent]
    alerts: list[Alert]
    events: list[Event]
    blocked: WaitingWork
