"""Picking by age alone, for one claim: the oldest ready task first, whatever its priority.

Looks at every ready task the agent may take. A workspace that always wants this sets `ordering` to fifo.
"""

from __future__ import annotations

from typing import NamedTuple

from shiftwork.engine.lane_merge import OVERFETCH, START, Place
from shiftwork.engine.lane_scan import ALL_LANES, CHUNK, HEAD_ROWS, MAX_ROWS, Places
from shiftwork.engine.lanes import Lane
from shiftwork.engine.pick import MAX_FRUITLESS, Picker
from shiftwork.store.store import Row


class _Read(NamedTuple):
    fitting: list[Row]
    rows: int
    place: Place | None
    """The place reached; None at the end."""


class OldestFirst(Picker):
    """Takes rows in the order in which they were created."""

    async def pick(self, lanes: list[Lane], count: int) -> list[Row]:
        self._lanes = {lane.id: lane for lane in lanes}
        places = Places(self._tx, self._request.workspace, self._wants)
        place: Place | None = START if lanes else None
        looked = in_vain = 0
        while place is not None and len(self._chosen) < count and looked < MAX_ROWS and in_vain < MAX_FRUITLESS:
            wanted = count - len(self._chosen)
            if looked >= HEAD_ROWS:
                place = max(place, await places.of(ALL_LANES) or place)
            read = await self._oldest(place, wanted * OVERFETCH if not looked else CHUNK)
            looked, place = looked + read.rows, read.place
            items = [(number, row["id"], row["lane"]) for number, row in enumerate(read.fitting)]
            now = self._tx.now
            rows = await self._tx.all("take_chosen", items=items, count=wanted, now=now) if items else []
            in_vain += len(rows) - await self._choose(rows)
            if len(rows) == wanted and (last := _place(rows[-1])) != place:
                place = last  # more that fit come after it
        await self._keep(places, place, looked, count)
        return self._chosen

    async def _oldest(self, place: Place, count: int) -> _Read:
        items = [(lane,) for lane in sorted(self._lanes)]
        rows = await self._tx.all("oldest_ready", lanes=items, created_at=place[0], id=place[2], count=count)
        fitting = await self._sift(rows)
        reached = _place(rows[-1]) if len(rows) == count else None
        return _Read([row for row in rows if row["id"] in fitting], len(rows), reached)

    async def _keep(self, places: Places, place: Place | None, looked: int, count: int) -> None:
        self.unfinished = place is not None and len(self._chosen) < count
        if self.unfinished and place is not None:
            await places.save({ALL_LANES: place})
        elif place is None and looked >= HEAD_ROWS:
            await places.drop()


def _place(row: Row) -> Place:
    return row["created_at"], 0.0, row["id"]
