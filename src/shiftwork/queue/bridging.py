"""Which bridges carry this workspace's work to streams and back, and how they stand."""

from __future__ import annotations

import msgspec

from shiftwork.queue.handle import Handle


class BridgeInfo(msgspec.Struct, frozen=True):
    """A bridge as its operator sees it."""

    name: str
    role: str
    seen_at: float
    """When it last looked."""
    unread: int
    """Entries on offer that nobody is known to have taken."""
    taken: int
    """Entries that workers have taken and not answered."""
    taken_in: int
    """Entries of a foreign orchestrator that are not answered yet."""
    events_after: int | None = None
    """The number of the last event told in its stream; None where it tells none."""


class Bridging(Handle):
    """What anybody may ask about bridges."""

    async def bridges(self) -> list[BridgeInfo]:
        """The bridges to streams that this workspace has, or had."""
        rows = await self._read(lambda tx: tx.all("list_bridges", workspace=self.workspace))
        return [BridgeInfo(**dict(row)) for row in rows]
