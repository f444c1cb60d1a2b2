"""How long a task waits for an agent that suits it better: seconds, and only while such an agent asks for work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shiftwork.settings.model import Settings

MAX_SEC = 30.0
ASKING_SEC = 60.0
"""An agent whose last claim, or whose registration, is older than this does not count as asking for work."""


def until(ready_since: float, settings: Settings) -> float:
    """When any able agent may take the task. Every agent that asks for work does so once in this time."""
    return ready_since + min(MAX_SEC, settings.heartbeat_interval_sec)
