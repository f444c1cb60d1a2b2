"""How long a task waits for an agent that suits it better: seconds, and only while such an agent is claiming."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shiftwork.settings.model import Settings

MAX_SEC = 30.0
ASKING_SEC = 60.0
"""An agent counts as claiming if its last claim or its registration is no older than this."""


def until(ready_since: float, settings: Settings) -> float:
    """When any able agent may take the task. Each claiming agent makes at least one claim in this time."""
    return ready_since + min(MAX_SEC, settings.heartbeat_interval_sec)
