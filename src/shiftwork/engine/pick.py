"""Picks tasks from an agent's lanes, best first or oldest first, skipping those that do not fit it now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from shiftwork.accounts.choice import AccountUse
from shiftwork.budgets.allocator import BudgetAllocator
from shiftwork.engine.engine import Engine
from shiftwork.engine.lane_merge import OVERFETCH, START, Head, Heads, LaneMerge, Place
from shiftwork.engine.lane_scan import ALL_LANES, CHUNK, HEAD_ROWS, MAX_ROWS, Places, Scan
from shiftwork.engine.lanes import ClaimFilter, Lane
from shiftwork.fairness import policy, preferences
from shiftwork.fairness.fair_share import FairShareMerge, RoundRobin, load_round_robin
from shiftwork.fairness.preferences import Needs, Preferences, needs_of
from shiftwork.limits.gates import Gates
from shiftwork.store.store import Row, Tx

MAX_FRUITLESS = 64
"""A claim stops after this many candidates that no longer fit once they are locked."""


class ClaimRequest(NamedTuple):
    """A claim as an agent requests it."""

    workspace: str
    agent_id: str
    runtime_id: str | None = None
    most: int = 1
    start: bool = False
    """Claim and start in one step."""
    types: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    fifo: bool = False
    """Oldest first, whatever the priority."""
    ahead: int = 0
    """How many tasks it may hold beyond its slots: they start within moments."""
    messages: tuple[tuple[str, str], ...] = ()
    """By task, the stream entry that it was taken with."""


class Picker:
    """Takes rows from lanes, best first, skipping those that do not fit this agent now."""

    def __init__(
        self,
        tx: Tx,
        engine: Engine,
        request: ClaimRequest,
        use: AccountUse,
        claim_filter: ClaimFilter,
        gates: Gates,
        allocator: BudgetAllocator,
    ) -> None:
        self._tx = tx
        self._engine = engine
        self._request = request
        self._agent = use.agent
        self._wants = claim_filter
        self._gates = gates
        self._purse = allocator
        self._preferences = Preferences(tx, engine, use, gates, request.runtime_id)
        self._round_robin: RoundRobin | None = None
        self._lanes: dict[int, Lane] = {}
        self._chosen: list[Row] = []
        self.misfits = 0
        self.unfinished = False
        """Whether there are ready tasks that this claim did not reach."""

    @property
    def sooner_at(self) -> float | None:
        """When the first task kept for other agents becomes available to this one."""
        return self._preferences.soonest

    async def pick(self, lanes: list[Lane], count: int) -> list[Row]:
        if not lanes:
            return []
        self._lanes = {lane.id: lane for lane in lanes}
        if not await (self._from_one if len(lanes) == 1 else self._from_many)(lanes, count):
            self.misfits = 0  # they are counted again
            await self._look_past(lanes, count)
        return self._chosen

    async def _from_one(self, lanes: list[Lane], count: int) -> bool:
        """Read directly from the index, locking on the way; returns whether every task found fitted."""
        start = dict(zip(("rank", "ordered_at", "id"), START, strict=True))
        rows = await self._tx.all("take_from_lane", lane=lanes[0].id, count=count, now=self._tx.now, **start)
        return await self._choose(rows) == len(rows)

    async def _from_many(self, lanes: list[Lane], count: int) -> bool:
        """Merge the heads of the lanes, then lock the best that no one else has locked; returns whether all fitted."""
        merge = await self._merge(lanes)
        fitted = True
        while fitted and len(self._chosen) < count:
            wanted = count - len(self._chosen)
            best = await merge.next(wanted)
            if not best:
                break
            rows = await self._lock(merge, best, wanted)
            fitted = await self._take(merge, rows) == len(rows)
            if not rows and len(best) < wanted * OVERFETCH:
                break
        await merge.save()
        return fitted

    async def _look_past(self, lanes: list[Lane], count: int) -> None:
        """Some did not fit: continue without locks, and lock only tasks that fit."""
        mixed = {lane.id for lane in lanes if lane.key.mixed}
        scan = Scan(self._tx, Places(self._tx, self._request.workspace, self._wants), self._sift, mixed)
        merge = await self._merge(lanes, scan)
        in_vain = 0
        best: list[Head] = []
        while len(self._chosen) < count and in_vain < MAX_FRUITLESS:
            wanted = count - len(self._chosen)
            best = await merge.next(wanted, spare=1)
            if not best:
                break
            rows = await self._lock(merge, best, wanted)
            in_vain += len(rows) - await self._take(merge, rows)
        await merge.save()
        await scan.save(to_the_end=not best)
        self.unfinished = scan.unfinished and len(self._chosen) < count

    async def _lock(self, merge: LaneMerge, best: Sequence[Head], wanted: int) -> Sequence[Row]:
        items = [(place, head[3], head[4]) for place, head in enumerate(best)]
        rows = await self._tx.all("take_chosen", items=items, count=wanted, now=self._tx.now)
        merge.push_back(best, {row["id"] for row in rows})
        return rows

    async def _take(self, merge: LaneMerge, rows: Sequence[Row]) -> int:
        before = len(self._chosen)
        taken = await self._choose(rows)
        merge.take(self._chosen[before:])
        return taken

    async def _merge(self, lanes: list[Lane], heads: Heads | None = None) -> LaneMerge:
        """The order of several lanes: by rank, or round-robin over shares and by rank within each."""
        workspace = self._request.workspace
        settings = (await self._engine.settings_cache.load(self._tx, workspace)).settings()
        bonuses = await preferences.affinity_bonus(self._tx, self._agent, lanes, settings)
        if not policy.is_fair_share_on(settings.fair_share) or len({lane.key.share for lane in lanes}) == 1:
            return LaneMerge(self._tx, lanes, bonuses, heads)
        self._round_robin = self._round_robin or await load_round_robin(self._tx, self._engine, workspace, lanes)
        return FairShareMerge(self._tx, lanes, bonuses, heads, self._round_robin, settings)

    async def _choose(self, rows: Sequence[Row]) -> int:
        """Take those of the locked rows that fit; returns how many."""
        await self._purse.load(self._tx, rows)
        unlimited = self._purse.unlimited
        before = len(self._chosen)
        free = {id_ for id_ in {row["lane"] for row in rows} if not self._preferences.concern_new(self._lanes[id_])}
        for row in rows:
            is_new = unlimited and row["budget_id"] is None and row["last_agent_id"] is None
            if (is_new and row["lane"] in free) or await self._fits(row, self._lanes[row["lane"]]):
                self._chosen.append(row)
            else:
                self.misfits += 1
        return len(self._chosen) - before

    async def _fits(self, row: Row, lane: Lane) -> bool:
        if not self._purse.fits(row) or not await self._suits(row, lane, row["body"]):
            return False
        self._purse.take(row)
        return True

    async def _suits(self, row: Row, lane: Lane, text: str | None) -> bool:
        """Whether the agent can do it, and no other agent should have it first."""
        if not self._preferences.concern(row, lane):
            return True
        body = msgspec.json.decode(text) if text is not None and self._preferences.reads_body(row, lane) else None
        if lane.key.mixed and not self._matches(row, needs_of(row, lane, body)):
            return False
        return await self._preferences.wait(row, lane, body) is None

    def _matches(self, row: Row, needs: Needs) -> bool:
        """In a mixed lane the requirements are in each task's own body."""
        able = self._wants.fits(row["type"], needs.capabilities, row["target_agent_id"])
        return able and self._gates.may_work_on(row["type"], needs.models, needs.fallback)

    async def _sift(self, rows: Sequence[Row]) -> set[str]:
        """Select the rows worth locking; these are not locked and have no body."""
        chosen = {row["id"] for row in self._chosen}
        await self._purse.load(self._tx, rows)
        paid = [row for row in rows if row["id"] not in chosen and self._purse.fits(row)]
        unread = [(row["id"],) for row in paid if self._preferences.reads_body(row, self._lanes[row["lane"]])]
        found = await self._tx.all("read_bodies", items=unread) if unread else ()
        bodies = {body["task_id"]: body["body"] for body in found}
        fitting = set()
        for row in paid:
            if await self._suits(row, self._lanes[row["lane"]], bodies.get(row["id"])):
                fitting.add(row["id"])
        self.misfits += len(rows) - len(fitting) - sum(row["id"] in chosen for row in rows)
        return fitting


class _Read(NamedTuple):
    fitting: list[Row]
    rows: int
    place: Place | None
    """The place reached; None at the end."""


class OldestFirst(Picker):
    """Takes the oldest ready task first, whatever its priority, for one claim.

    Looks at every ready task the agent may take. A workspace that always wants this sets `ordering` to fifo.
    """

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
