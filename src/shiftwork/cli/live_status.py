"""What `watch` sees at one moment: read from the queue, then drawn or printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from shiftwork.agents.model import Agent
    from shiftwork.model.history import Event
    from shiftwork.model.task import Task
    from shiftwork.observe.model import Alert, Status, WaitingWork


class LiveStatus(msgspec.Struct, frozen=True):
    """The queue, what runs in it, and what has happened of late."""

    at: float
    status: Status
    running: list[Task]
    agents: list[Agent]
    alerts: list[Alert]
    events: list[Event]
    blocked: WaitingWork
