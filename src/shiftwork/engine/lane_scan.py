"""Scans lanes past tasks that do not fit, a bounded number of rows per claim.

A claim that reaches its bound saves its place with the agent, in the database, and the next one, perhaps from another
process, continues there. Every claim reads the heads of the lanes first, and at the end of all lanes the scan starts
over. So every agent reaches every task, however many precede it and however they have changed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet

from shiftwork.engine.lane_merge import Heads, Place
from shiftwork.engine.lanes import ClaimFilter
from shiftwork.store.store import Row, Tx

MAX_ROWS = 2_000
"""The most rows that one claim reads. A row whose body must be read, too, counts as several."""

BODY_ROWS = 4
HEAD_ROWS = 400
"""The rows at the head of a lane that every claim reads before it continues where the last one ended."""

CHUNK = 256
FORGET_SEC = 3_600.0
ALL_LANES = 0
"""The key under which the place of oldest-first claims is stored."""

Fits = Callable[[Sequence[Row]], Awaitable[set[str]]]
"""The ids of the rows that fit."""


class Places:
    """How far an agent has scanned its lanes without finding a task that fits."""

    def __init__(self, tx: Tx, workspace: str, claim_filter: ClaimFilter) -> None:
        self._tx = tx
        self._workspace = workspace
        self._agent_id = claim_filter.agent_id
        self._wants = _key_hash(claim_filter)
        self._kept: dict[int, Place] | None = None

    async def of(self, lane: int) -> Place | None:
        if self._kept is None:
            names = {"workspace": self._workspace, "agent": self._agent_id, "wants": self._wants}
            rows = await self._tx.all("read_places", **names)
            self._kept = {row["lane"]: (row["rank"], row["ordered_at"], row["task_id"]) for row in rows}
        return self._kept.get(lane)

    async def save(self, reached: dict[int, Place]) -> None:
        """Save the place reached."""
        names = (self._workspace, self._agent_id, self._wants)
        items = [(*names, lane, *place, self._tx.now) for lane, place in sorted(reached.items())]
        await self._tx.run("save_places", items=items)

    async def drop(self) -> None:
        """Start over, because everything has been read."""
        if self._kept:
            names = {"workspace": self._workspace, "agent": self._agent_id, "wants": self._wants}
            await self._tx.run("drop_places", **names, before=self._tx.now - FORGET_SEC)


def _key_hash(claim_filter: ClaimFilter) -> str:
    return hashlib.sha256(claim_filter.text().encode()).hexdigest()[:16]


class Scan(Heads):
    """Continues to read the lanes, and decides for each row whether it fits."""

    def __init__(self, tx: Tx, places: Places, fits: Fits, mixed: AbstractSet[int]) -> None:
        super().__init__(tx)
        self._places = places
        self._fits = fits
        self._mixed = mixed
        self._left = MAX_ROWS
        self._reached: dict[int, Place] = {}
        self.unfinished = False
        """Whether there are rows that this claim has not read."""

    async def read(self, places: dict[int, Place], count: int) -> tuple[Sequence[Row], set[str], set[int]]:
        if self._left <= 0:
            self.unfinished = True
            return (), set(), set(places)
        await self._jump(places)
        weight = 1 if self._mixed.isdisjoint(places) else BODY_ROWS
        each = max(1, min(max(CHUNK, count), self._left // len(places)) // weight)
        rows = await self._tx.all("scan_lanes", lanes=[(lane, *place) for lane, place in places.items()], count=each)
        self._left -= len(rows) * weight
        got = Counter(row["lane"] for row in rows)
        for row in rows:
            lane, place = row["lane"], (row["rank"], row["ordered_at"], row["id"])
            self._reached[lane] = max(place, self._reached.get(lane, place))
        return rows, {row["id"] for row in rows} - await self._fits(rows), {lane for lane in places if got[lane] < each}

    async def _jump(self, places: dict[int, Place]) -> None:
        """Continue where the agent's last claim ended."""
        if self._left <= MAX_ROWS - HEAD_ROWS:
            for lane, place in places.items():
                kept = await self._places.of(lane)
                if kept is not None and kept > place:
                    self._reached[lane] = places[lane] = kept

    async def save(self, *, to_the_end: bool) -> None:
        """A finished lane stays at its end until all lanes are finished."""
        if self.unfinished:
            await self._places.save(self._reached)
        elif to_the_end and self._left <= MAX_ROWS - HEAD_ROWS:
            await self._places.drop()
