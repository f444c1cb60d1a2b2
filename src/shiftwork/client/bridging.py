"""What anybody asks a server about its bridges."""

from __future__ import annotations

from shiftwork.client.handle import Handle
from shiftwork.queue.bridging import BridgeInfo
from shiftwork.wire.bridges import BridgeList


class Bridging(Handle):
    """Verbs about bridges."""

    async def bridges(self) -> list[BridgeInfo]:
        return (await self._get("/api/bridges", BridgeList)).bridges
