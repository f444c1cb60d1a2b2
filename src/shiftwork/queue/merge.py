"""Walks several lanes in one order, reading no more of each than is needed."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from shiftwork.queue.lanes import Lane
from shiftwork.store.store import Row, Tx

START = (-1e308, 0.0, "00000000-0000-0000-0000-000000000000")
"""Before the first place of any lane."""

OVERFETCH = 4
"""Candidates looked at per task wanted when several lanes are merged; else claimers that meet starve each other."""

Head = tuple[float, float, str, str, int]
"""Effective rank, ordered_at, id as tie-break, id, lane."""


class Merge:
    """The lanes' tasks, best first. A lane whose last candidate was taken is read further before more is given:
    else a burst of urgent work in one lane would be passed over.
    """

    def __init__(self, tx: Tx, lanes: Sequence[Lane], favours: Mapping[int, float]) -> None:
        """`favours` says by lane how many seconds older its tasks count among those of equal rank."""
        self._tx = tx
        self._favours = favours
        self._shift = {lane.id: lane.key.rate * tx.now / 60 for lane in lanes}
        self._place: dict[int, tuple[float, float, str]] = {lane.id: START for lane in lanes}
        self._waiting: dict[int, int] = {lane.id: 0 for lane in lanes}
        self._dry: set[int] = set()
        self._heads: list[Head] = []

    async def next(self, wanted: int) -> list[Head]:
        """The next candidates in order, some to spare; fewer where the lanes hold no more."""
        best: list[Head] = []
        count = wanted * OVERFETCH
        while len(best) < count:
            await self._refill(count)
            head = self._pop()
            if head is None:
                break
            self._waiting[head[4]] -= 1
            best.append(head)
        return best

    async def _refill(self, count: int) -> None:
        empty = [lane for lane, left in self._waiting.items() if left == 0 and lane not in self._dry]
        if not empty:
            return
        each = max(8, 2 * count // len(self._waiting))
        rows = await self._tx.all("lane_heads", lanes=[(lane, *self._place[lane]) for lane in empty], count=each)
        got = dict.fromkeys(empty, 0)
        for row in sorted(rows, key=lambda r: (r["rank"], r["ordered_at"], r["id"])):
            lane = row["lane"]
            got[lane] += 1
            self._place[lane] = row["rank"], row["ordered_at"], row["id"]
            older = row["ordered_at"] - self._favours.get(lane, 0.0)
            self._push((row["rank"] - self._shift[lane], older, row["id"], row["id"], lane))
        for lane, number in got.items():
            self._waiting[lane] += number
            if number < each:
                self._dry.add(lane)

    def give_back(self, best: Sequence[Head], seen: set[str]) -> None:
        """Candidates that were not locked, because enough were, come first the next time."""
        cut = max((place for place, head in enumerate(best) if head[3] in seen), default=len(best) - 1)
        for head in best[cut + 1 :]:
            self._push(head)
            self._waiting[head[4]] += 1

    def take(self, rows: Sequence[Row]) -> None:
        """These were chosen, in this order."""

    async def save(self) -> None:
        """Keep what the next claim must know."""

    def _push(self, head: Head) -> None:
        heapq.heappush(self._heads, head)

    def _pop(self) -> Head | None:
        return heapq.heappop(self._heads) if self._heads else None
