"""Bridges: who carries this workspace's work to streams and back."""

from __future__ import annotations

from typing import Any

from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors
from shiftwork.wire.shapes import BridgeList

door = Doors("Bridges")


@door("GET /api/bridges", "read", answer=BridgeList)
async def bridges(ask: Ask) -> Any:
    """The bridges to streams, when each last looked, and what it carries."""
    return BridgeList(await ask.queue.bridges())
