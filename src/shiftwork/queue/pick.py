"""Picking: takes tasks out of an agent's lanes, best first, passing over what does not fit it now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from shiftwork.core.settings import Settings
from shiftwork.policy import retry, share
from shiftwork.queue.engine import Engine
from shiftwork.queue.fairness import affinity
from shiftwork.queue.fairness.deal import Deal, take_turns
from shiftwork.queue.lanes import Lane, Wants
from shiftwork.queue.merge import OVERFETCH, START, Merge
from shiftwork.queue.money.purse import Purse
from shiftwork.queue.outputs import judging
from shiftwork.queue.protection.gates import Gates
from shiftwork.queue.work import own_settings
from shiftwork.store.store import Row, Tx

WINDOW = 256
"""Candidates that do not fit this agent before a claim gives up on a lane and says so."""


class ClaimRequest(NamedTuple):
    """What an agent asks for."""

    workspace: str
    agent_id: str
    runtime_id: str | None = None
    most: int = 1
    start: bool = False
    """Begin at once: claimed and started in one step."""
    types: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    fifo: bool = False
    """The oldest first, whatever its priority."""
    messages: tuple[tuple[str, str], ...] = ()
    """By task, the entry of a stream that it was taken with."""


class Picker:
    """Takes rows out of lanes, best first, passing over what does not fit this agent now."""

    def __init__(
        self, tx: Tx, engine: Engine, request: ClaimRequest, agent: Row, wants: Wants, gates: Gates, purse: Purse
    ) -> None:
        self._tx = tx
        self._engine = engine
        self._request = request
        self._agent = agent
        self._wants = wants
        self._gates = gates
        self._purse = purse
        self._others: list[Row] | None = None
        self.misfits = 0

    async def pick(self, lanes: list[Lane], count: int) -> list[Row]:
        if not lanes:
            return []
        if len(lanes) == 1:
            return await self._from_one(lanes[0], count)
        return await self._from_many(lanes, count)

    async def _from_one(self, lane: Lane, count: int) -> list[Row]:
        """Straight off the index, locking as it goes."""
        chosen: list[Row] = []
        place: tuple[float, float, str] = START
        while len(chosen) < count and self.misfits < WINDOW:
            wanted = count - len(chosen)
            rows = await self._tx.all(
                "take_from_lane", lane=lane.id, count=wanted, rank=place[0], ordered_at=place[1], id=place[2]
            )
            chosen += await self._fitting(rows, {lane.id: lane})
            if len(rows) < wanted:
                break
            place = rows[-1]["rank"], rows[-1]["ordered_at"], rows[-1]["id"]
        return chosen

    async def _from_many(self, lanes: list[Lane], count: int) -> list[Row]:
        """Merge the heads of the lanes, then lock of the best what nobody else holds."""
        by_id = {lane.id: lane for lane in lanes}
        merge = await self._merge(lanes)
        chosen: list[Row] = []
        while len(chosen) < count and self.misfits < WINDOW:
            wanted = count - len(chosen)
            best = await merge.next(wanted)
            if not best:
                break
            items = [(place, head[3], head[4]) for place, head in enumerate(best)]
            rows = await self._tx.all("take_chosen", items=items, count=wanted)
            fitting = await self._fitting(rows, by_id)
            chosen += fitting
            merge.take(fitting)
            merge.give_back(best, {row["id"] for row in rows})
            if not rows and len(best) < wanted * OVERFETCH:
                break
        await merge.save()
        return chosen

    async def _merge(self, lanes: list[Lane]) -> Merge:
        """The order of several lanes: by rank, or round the shares and by rank in each."""
        workspace = self._request.workspace
        settings = (await self._engine.book.of(self._tx, workspace)).settings()
        favours = await affinity.favours(self._tx, self._agent, lanes, settings)
        if not share.is_on(settings.fair_share) or len({lane.key.share for lane in lanes}) == 1:
            return Merge(self._tx, lanes, favours)
        turns = await take_turns(self._tx, self._engine, workspace, lanes)
        return Deal(self._tx, lanes, favours, turns, settings)

    async def _fitting(self, rows: Sequence[Row], lanes: dict[int, Lane]) -> list[Row]:
        fitting = []
        await self._purse.look(self._tx, rows)
        anybody = self._purse.anybody and not any(lane.key.mixed for lane in lanes.values())
        for row in rows:
            free = anybody and row["last_agent_id"] is None and row["budget_id"] is None
            if free or await self._fits(row, lanes[row["lane"]]):
                fitting.append(row)
            else:
                self.misfits += 1
        return fitting

    async def _fits(self, row: Row, lane: Lane) -> bool:
        if lane.key.mixed and not self._matches(row):
            return False
        if not self._purse.fits(row):
            return False
        if row["last_agent_id"] is not None and await self._better_elsewhere(row):
            return False
        self._purse.take(row)
        return True

    def _matches(self, row: Row) -> bool:
        """In a mixed lane the requirements are in each task's own body."""
        body = msgspec.json.decode(row["body"])
        constraints = (body.get("spec") or {}).get("constraints") or {}
        capabilities = constraints.get("required_capabilities", ())
        fallback = constraints.get("fallback_models", ())
        models = retry.models(constraints.get("model_preferences", ()), fallback, row["attempts"])
        able = self._wants._replace(models=frozenset()).fits(row["type"], capabilities, (), row["target_agent_id"])
        return able and self._gates.may_work_on(row["type"], models, retry.fallback(fallback, row["attempts"]))

    async def _better_elsewhere(self, row: Row) -> bool:
        """A failed task prefers another agent, or its own runtime, where one is free; it never waits for that alone.

        Nor should a judge be who made the output.
        """
        resolver = await self._engine.book.of(self._tx, row["workspace"])
        own = own_settings(msgspec.json.decode(row["body"])) if row["own_settings"] else None
        settings = resolver.settings(row["type"], own)
        if row["type"] == judging.TYPE and (author := judging.author(row)) and await self._is_like(author):
            return any(self._is_able(other, row) for other in await self._free_others(settings))
        preference = settings.retry.agent_preference
        if preference == "different" and await self._is_like(row["last_agent_id"]):
            return any(self._could_take(other, row) for other in await self._free_others(settings))
        if preference == "same_runtime" and row["last_runtime_id"] not in {None, self._request.runtime_id}:
            return await self._runtime_waits(row, settings)
        return False

    async def _is_like(self, agent_id: str) -> bool:
        """Whether this agent is the one that failed, or of its isolation group."""
        if agent_id == self._request.agent_id or self._agent["isolation_group"] is None:
            return agent_id == self._request.agent_id
        failed = await self._tx.one("read_agent", workspace=self._request.workspace, id=agent_id)
        return failed is not None and failed["isolation_group"] == self._agent["isolation_group"]

    async def _free_others(self, settings: Settings) -> list[Row]:
        if self._others is None:
            since = self._tx.now - (settings.heartbeat_timeout_sec or 90)
            rows = await self._tx.all(
                "other_agents", workspace=self._request.workspace, id=self._request.agent_id, since=since
            )
            self._others = list(rows)
        return self._others

    def _could_take(self, other: Row, row: Row) -> bool:
        return other["id"] != row["last_agent_id"] and self._is_able(other, row)

    def _is_able(self, other: Row, row: Row) -> bool:
        if other["isolation_group"] is not None and other["isolation_group"] == self._agent["isolation_group"]:
            return False
        constraints = (msgspec.json.decode(row["body"]).get("spec") or {}).get("constraints") or {}
        types = other["types"] and frozenset(msgspec.json.decode(other["types"]))
        wants = Wants(other["id"], types or None, frozenset(msgspec.json.decode(other["capabilities"])), frozenset())
        return wants.fits(row["type"], constraints.get("required_capabilities", ()), (), row["target_agent_id"])

    async def _runtime_waits(self, row: Row, settings: Settings) -> bool:
        runtime = await self._tx.one("read_runtime", workspace=row["workspace"], id=row["last_runtime_id"])
        if runtime is None or runtime["status"] != "active":
            return False
        recently = self._tx.now - (settings.runtime_offline_sec or 75)
        patience = row["updated_at"] + settings.heartbeat_interval_sec
        return bool(runtime["seen_at"] >= recently and self._tx.now < patience)
