"""Walks several lanes in one order, reading no more of each than is needed."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

from shiftwork.engine.lanes import Lane
from shiftwork.store.store import Row, Tx

START = (-1e308, 0.0, "00000000-0000-0000-0000-000000000000")
"""Before the first place of any lane."""

OVERFETCH = 4
"""Candidates read per task wanted when several lanes are merged; with fewer, concurrent claims would starve each
other."""

Place = tuple[float, float, str]
"""Rank, ordered_at and id of a task: where it is in its lane."""

Head = tuple[float, float, str, str | None, int]
"""Effective rank, ordered_at, id as tie-break, id, lane. Without an id, it stands for everything after this place."""


class Heads:
    """Reads the next tasks of lanes."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def read(self, places: dict[int, Place], count: int) -> tuple[Sequence[Row], set[str], set[int]]:
        """Up to `count` rows of each lane after its place; which of them to skip; and the lanes that end there.

        If the reader changes a place, the lane was read from there.
        """
        lanes = [(lane, *place) for lane, place in places.items()]
        rows = await self._tx.all("lane_heads", lanes=lanes, count=count)
        got = Counter(row["lane"] for row in rows)
        return rows, set(), {lane for lane in places if got[lane] < count}


class LaneMerge:
    """Merges the lanes' tasks, best first. When a lane's last candidate is taken, more of it is read before continuing:
    otherwise a burst of urgent work in one lane would be skipped.
    """

    def __init__(self, tx: Tx, lanes: Sequence[Lane], bonuses: Mapping[int, float], heads: Heads | None = None) -> None:
        """`favours` adds seconds of age to a lane's tasks, among tasks of equal rank."""
        self._source = heads or Heads(tx)
        self._affinity_bonus = bonuses
        self._shift = {lane.id: lane.key.rate * tx.now / 60 for lane in lanes}
        self._place: dict[int, Place] = {lane.id: START for lane in lanes}
        self._waiting: dict[int, int] = {lane.id: 0 for lane in lanes}
        self._dry: set[int] = set()
        self._heads: list[Head] = []

    async def next(self, wanted: int, spare: int = OVERFETCH) -> list[Head]:
        """The next candidates in order, `spare` times as many as wanted, or all that the lanes hold."""
        best: list[Head] = []
        count = wanted * spare
        while len(best) < count:
            await self._refill(count)
            head = self._pop()
            if head is None:
                break
            self._waiting[head[4]] -= 1
            if head[3] is not None:
                best.append(head)
        return best

    async def _refill(self, count: int) -> None:
        empty = [lane for lane, left in self._waiting.items() if left == 0 and lane not in self._dry]
        if not empty:
            return
        each = max(8, 2 * count // len(self._waiting))
        places = {lane: self._place[lane] for lane in empty}
        rows, refused, exhausted = await self._source.read(places, each)
        self._dry |= exhausted
        last: dict[int, Row] = {}
        for row in sorted(rows, key=lambda r: (r["rank"], r["ordered_at"], r["id"])):
            last[row["lane"]] = row
            if row["id"] not in refused:
                self._add(row, row["id"])
        for lane, row in last.items():
            self._place[lane] = row["rank"], row["ordered_at"], row["id"]
            if row["id"] in refused and lane not in exhausted:
                self._add(row, None)

    def _add(self, row: Row, id_: str | None) -> None:
        lane = row["lane"]
        older = row["ordered_at"] - self._affinity_bonus.get(lane, 0.0)
        self._push((row["rank"] - self._shift[lane], older, row["id"], id_, lane))
        self._waiting[lane] += 1

    def push_back(self, best: Sequence[Head], seen: set[str]) -> None:
        """Return candidates that were not needed: they come first the next time."""
        cut = max((place for place, head in enumerate(best) if head[3] in seen), default=len(best) - 1)
        for head in best[cut + 1 :]:
            self._push(head)
            self._waiting[head[4]] += 1

    def take(self, rows: Sequence[Row]) -> None:
        """Record the chosen tasks, in order."""

    async def save(self) -> None:
        """Save the state for the next claim."""

    def _push(self, head: Head) -> None:
        heapq.heappush(self._heads, head)

    def _pop(self) -> Head | None:
        return heapq.heappop(self._heads) if self._heads else None
