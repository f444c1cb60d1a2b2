"""Picking by age alone, for one claim: the oldest ready task first, whatever its priority.

Looks at every ready task the agent may take. A workspace that always wants this sets `ordering` to fifo.
"""

from __future__ import annotations

from shiftwork.queue.lanes import Lane
from shiftwork.queue.merge import OVERFETCH, START
from shiftwork.queue.pick import WINDOW, Picker
from shiftwork.store.store import Row


class OldestFirst(Picker):
    """Takes rows in the order in which they were created."""

    async def pick(self, lanes: list[Lane], count: int) -> list[Row]:
        by_id = {lane.id: lane for lane in lanes}
        items = [(lane_id,) for lane_id in sorted(by_id)]
        chosen: list[Row] = []
        created_at, id_ = 0.0, START[2]
        while items and len(chosen) < count and self.misfits < WINDOW:
            wanted = count - len(chosen)
            oldest = await self._tx.all(
                "oldest_ready", lanes=items, created_at=created_at, id=id_, count=wanted * OVERFETCH
            )
            places = [(place, row["id"], row["lane"]) for place, row in enumerate(oldest)]
            rows = await self._tx.all("take_chosen", items=places, count=wanted) if places else []
            chosen += await self._fitting(rows, by_id)
            last = rows[-1] if len(rows) == wanted else oldest[-1] if len(oldest) == wanted * OVERFETCH else None
            if last is None:
                break
            created_at, id_ = last["created_at"], last["id"]
        return chosen
