"""Hands out the tasks of shares in turn: one of each share, its best first."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from shiftwork.engine import rank
from shiftwork.engine.engine import Engine
from shiftwork.engine.lane_merge import OVERFETCH, Head, Heads, LaneMerge
from shiftwork.engine.lanes import Lane
from shiftwork.fairness import policy
from shiftwork.fairness.policy import Share
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx


class RoundRobin:
    """The turns of the shares in a workspace.

    One claim at a time holds them and takes tasks in that order. Concurrent claims do not wait; they use a random
    order, which passes over no share forever, either.
    """

    def __init__(self, tx: Tx, workspace: str, kept: list[Share] | None, order: list[Share]) -> None:
        self._tx = tx
        self._workspace = workspace
        self._kept = kept
        self.order = order

    async def save(self) -> None:
        if self._kept is not None and self._kept != self.order:
            text = msgspec.json.encode(self.order).decode()
            await self._tx.run("save_turns", workspace=self._workspace, shares=text)


async def load_round_robin(tx: Tx, engine: Engine, workspace: str, lanes: Sequence[Lane]) -> RoundRobin:
    row = await tx.one("take_turns", workspace=workspace)
    if row is not None:
        kept = msgspec.json.decode(row["shares"], type=list[int | None])
        return RoundRobin(tx, workspace, kept, kept)
    chance: list[Share] = list({lane.key.share for lane in lanes})
    engine.random.shuffle(chance)
    return RoundRobin(tx, workspace, None, chance)


class FairShareMerge(LaneMerge):
    """Like a merge, but no share gets a second task while another waiting share has had none."""

    def __init__(
        self,
        tx: Tx,
        lanes: Sequence[Lane],
        bonuses: Mapping[int, float],
        heads: Heads | None,
        round_robin: RoundRobin,
        settings: Settings,
    ) -> None:
        super().__init__(tx, lanes, bonuses, heads)
        self._share = {lane.id: lane.key.share for lane in lanes}
        self._piles: dict[Share, list[Head]] = {}
        self._round_robin = round_robin
        self._expected = round_robin.order
        self._wanted = self._left = 1
        self._settings = settings

    async def next(self, wanted: int, spare: int = OVERFETCH) -> list[Head]:
        self._wanted = self._left = wanted
        self._expected = self._round_robin.order
        return await super().next(wanted, spare)

    def take(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._round_robin.order = policy.after_serving(self._round_robin.order, self._share[row["lane"]])

    async def save(self) -> None:
        await self._round_robin.save()

    def _push(self, head: Head) -> None:
        heapq.heappush(self._piles.setdefault(self._share[head[4]], []), head)

    def _pop(self) -> Head | None:
        bands = {each: rank.band(pile[0][0], self._settings) for each, pile in self._piles.items() if pile}
        if not bands:
            return None
        if not self._left:
            # Spare tasks come from the same shares, so that a share whose best task is locked can use its next.
            self._left, self._expected = self._wanted, self._round_robin.order
        first = min(bands.values())
        served = policy.next_share(self._expected, [each for each, band in bands.items() if band == first])
        head = heapq.heappop(self._piles[served])
        if head[3] is not None:  # otherwise the lane must be read on first, and its share keeps its turn
            self._left -= 1
            self._expected = policy.after_serving(self._expected, served)
        return head
