"""Claiming: choose the best work an agent can and may do, hold it under a fence, and hand it over."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import AgentUnavailable, AgentUnknown
from shiftwork.core.settings import Settings
from shiftwork.core.states import State
from shiftwork.core.task import Task
from shiftwork.policy import lease
from shiftwork.queue import read
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.lanes import TARGETED, Lane, Wants
from shiftwork.queue.rows import load
from shiftwork.queue.work import Work, own_settings
from shiftwork.store.store import Row, Tx

START = (-1e308, 0.0, "00000000-0000-0000-0000-000000000000")
"""Before the first place of any lane."""

OVERFETCH = 4
"""Candidates looked at per task wanted when several lanes are merged; else claimers that meet starve each other."""

WINDOW = 256
"""Candidates that do not fit this agent before a claim gives up on a lane and says so."""

_TO_CLAIMED = "ready>claimed"
_TO_RUNNING = "ready>claimed>running"


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


class Assignment:
    """A claimed task as its agent gets it. The whole task is built when it is asked for."""

    __slots__ = ("_now", "_request", "_row", "_settings", "_terms", "fence", "id", "token")

    def __init__(self, row: Row, request: ClaimRequest, terms: _Terms, settings: Settings, now: float) -> None:
        self._row = row
        self._request = request
        self._terms = terms
        self._settings = settings
        self._now = now
        self.id = ids.show_task(row["id"])
        self.fence: int = row["fence"] + 1
        self.token = ids.token(self.id, self.fence)

    @property
    def assignment_id(self) -> str:
        return self.token

    @property
    def type(self) -> str:
        return str(self._row["type"])

    @property
    def ack_required_by(self) -> float | None:
        return self._terms.limits.ack_by

    @property
    def execution_deadline(self) -> float | None:
        return self._terms.limits.run_until

    @property
    def heartbeat_interval_sec(self) -> float:
        return self._settings.heartbeat_interval_sec

    @property
    def payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = msgspec.json.decode(self._row["body"]).get("payload", {})
        return payload

    @property
    def spec(self) -> dict[str, Any] | None:
        return self.task().spec

    def task(self) -> Task:
        """Every field as of the claim; history and dependencies are read with `Queue.get`."""
        row = load(self._row)
        row.status, row.fence, row.version = self._terms.status, self.fence, row.version + 1
        row.agent_id, row.runtime_id = self._request.agent_id, self._request.runtime_id or self._request.agent_id
        row.claimed_at, row.started_at, row.updated_at = self._now, self._terms.started_at, self._now
        row.ack_by, row.run_until, row.lease_until, row.lease_check_at = self._terms.limits
        row.reserved, row.heartbeat_at, row.available_at = self._terms.reserved, None, None
        return read.build(row, msgspec.json.decode(self._row["body"]), self._settings, self._now, read.Around())


class ClaimAnswer(NamedTuple):
    assignments: list[Assignment]
    closed: tuple[str, ...] = ()
    """Scopes whose gate is closed: `*` for the whole workspace, else a type."""
    no_fit: int = 0
    """Ready tasks that were looked at and did not fit this agent now."""
    at_capacity: bool = False


async def claim(tx: Tx, engine: Engine, caller: Caller, request: ClaimRequest) -> ClaimAnswer:
    """Hand out up to `most` tasks, best first."""
    agent = await _agent(tx, engine, request)
    free = await _free_slots(tx, request, agent)
    if free <= 0:
        return ClaimAnswer([], at_capacity=True)
    wants = _wants(request, agent)
    lanes, closed = await _eligible(tx, engine, request, wants)
    picker = _Picker(tx, engine, request, agent, wants)
    chosen = await picker.pick(lanes, min(free, request.most))
    assignments = await _hold(tx, engine, caller, request, agent, chosen)
    return ClaimAnswer(assignments, closed, picker.misfits)


async def _agent(tx: Tx, engine: Engine, request: ClaimRequest) -> Row:
    """The agent's row, locked before its limits are counted; made from the request where that is allowed."""
    row = await tx.one("lock_agent", workspace=request.workspace, id=request.agent_id)
    if row is None:
        settings = (await engine.book.of(tx, request.workspace)).settings()
        if settings.require_registration:
            raise AgentUnknown(f"agent {request.agent_id!r} is not registered", agent_id=request.agent_id)
        await register(tx, engine, request)
        row = await tx.one("lock_agent", workspace=request.workspace, id=request.agent_id)
        assert row is not None
    if row["status"] in {"draining", "offline"}:
        raise AgentUnavailable(f"agent {request.agent_id!r} is {row['status']}", agent_id=request.agent_id)
    if row["status"] == "failed":
        await tx.run("set_agent_status", workspace=request.workspace, id=request.agent_id, status="active")
    return row


async def register(tx: Tx, engine: Engine, request: ClaimRequest) -> None:
    settings = (await engine.book.of(tx, request.workspace)).settings()
    await tx.run(
        "add_agent",
        workspace=request.workspace,
        id=request.agent_id,
        type=None,
        types=_names(request.types) if request.types is not None else None,
        capabilities=_names(request.capabilities),
        models=_names(request.models),
        max_concurrent_tasks=settings.max_concurrent_tasks,
        budget=None,
        poll_interval_sec=settings.poll_interval_sec,
        claim_ttl_sec=None,
        isolation_group=None,
        now=tx.now,
    )


def _names(names: Sequence[str]) -> str:
    return msgspec.json.encode(list(names)).decode()


async def _free_slots(tx: Tx, request: ClaimRequest, agent: Row) -> int:
    if agent["max_concurrent_tasks"] is None:
        return request.most
    held = await tx.one("held_by_agent", agent=request.agent_id, workspace=request.workspace)
    assert held is not None
    return int(agent["max_concurrent_tasks"]) - int(held["held"])


def _wants(request: ClaimRequest, agent: Row) -> Wants:
    """What it registered, narrowed by what this claim asks for."""

    def of(column: str, asked: Sequence[str]) -> frozenset[str]:
        return frozenset(asked) | frozenset(msgspec.json.decode(agent[column] or "[]"))

    types = None if agent["types"] is None else frozenset(msgspec.json.decode(agent["types"]))
    if request.types is not None:
        types = frozenset(request.types)
    return Wants(request.agent_id, types, of("capabilities", request.capabilities), of("models", request.models))


async def _eligible(tx: Tx, engine: Engine, request: ClaimRequest, wants: Wants) -> tuple[list[Lane], tuple[str, ...]]:
    """Lanes with work that this agent may take, and the gates that stand closed."""
    rows = await tx.all("open_lanes", bound=TARGETED, workspace=request.workspace, agent=request.agent_id)
    closed = {row["scope"] for row in rows if row["scope"] is not None}
    lanes = await engine.lanes.lanes(tx, [row["lane"] for row in rows if row["lane"] is not None])
    eligible = [
        lane
        for lane in lanes
        if lane.key.workspace == request.workspace
        and "*" not in closed
        and lane.key.type not in closed
        and wants.may_take(lane)
    ]
    return eligible, tuple(sorted(closed))


class _Picker:
    """Takes rows out of lanes, best first, passing over what does not fit this agent now."""

    def __init__(self, tx: Tx, engine: Engine, request: ClaimRequest, agent: Row, wants: Wants) -> None:
        self._tx = tx
        self._engine = engine
        self._request = request
        self._agent = agent
        self._wants = wants
        self._money = None if agent["budget"] is None else agent["budget"] - agent["spent"] - agent["reserved"]
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
        merge = _Merge(self._tx, lanes)
        chosen: list[Row] = []
        while len(chosen) < count and self.misfits < WINDOW:
            wanted = count - len(chosen)
            best = await merge.next(wanted * OVERFETCH)
            if not best:
                break
            items = [(place, head[3], head[4]) for place, head in enumerate(best)]
            rows = await self._tx.all("take_chosen", items=items, count=wanted)
            chosen += await self._fitting(rows, by_id)
            merge.give_back(best, {row["id"] for row in rows})
            if not rows and len(best) < wanted * OVERFETCH:
                break
        return chosen

    async def _fitting(self, rows: Sequence[Row], lanes: dict[int, Lane]) -> list[Row]:
        fitting = []
        for row in rows:
            if await self._fits(row, lanes[row["lane"]]):
                fitting.append(row)
            else:
                self.misfits += 1
        return fitting

    async def _fits(self, row: Row, lane: Lane) -> bool:
        if lane.key.mixed and not self._matches(row):
            return False
        cost = row["cost_limit"]
        if self._money is not None and cost is not None and cost > self._money:
            return False
        if row["last_agent_id"] is not None and await self._better_elsewhere(row):
            return False
        if self._money is not None:
            self._money -= cost or 0
        return True

    def _matches(self, row: Row) -> bool:
        """In a mixed lane the requirements are in each task's own body."""
        body = msgspec.json.decode(row["body"])
        constraints = (body.get("spec") or {}).get("constraints") or {}
        capabilities = constraints.get("required_capabilities", ())
        return self._wants.fits(
            row["type"], capabilities, constraints.get("model_preferences", ()), row["target_agent_id"]
        )

    async def _better_elsewhere(self, row: Row) -> bool:
        """A failed task prefers another agent, or its own runtime, where one is free; it never waits for that alone."""
        resolver = await self._engine.book.of(self._tx, row["workspace"])
        own = own_settings(msgspec.json.decode(row["body"])) if row["own_settings"] else None
        settings = resolver.settings(row["type"], own)
        preference = settings.retry.worker_preference
        if preference == "different" and self._is_like(row["last_agent_id"]):
            return any(self._could_take(other, row) for other in await self._free_others(settings))
        if preference == "same_runtime" and row["last_runtime_id"] not in {None, self._request.runtime_id}:
            return await self._runtime_waits(row, settings)
        return False

    def _is_like(self, agent_id: str) -> bool:
        return (
            agent_id == self._request.agent_id or self._group_of(agent_id) == self._agent["isolation_group"] is not None
        )

    def _group_of(self, agent_id: str) -> str | None:
        for other in self._others or []:
            if other["id"] == agent_id:
                group: str | None = other["isolation_group"]
                return group
        return None

    async def _free_others(self, settings: Settings) -> list[Row]:
        if self._others is None:
            since = self._tx.now - (settings.heartbeat_timeout_sec or 90)
            rows = await self._tx.all(
                "other_agents", workspace=self._request.workspace, id=self._request.agent_id, since=since
            )
            self._others = list(rows)
        return self._others

    def _could_take(self, other: Row, row: Row) -> bool:
        if other["id"] == row["last_agent_id"]:
            return False
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


Head = tuple[float, float, str, str, int]
"""Effective rank, ordered_at, id as tie-break, id, lane."""


class _Merge:
    """Walks several lanes in one order. A lane whose last candidate was taken is read further before more is given:
    else a burst of urgent work in one lane would be passed over.
    """

    def __init__(self, tx: Tx, lanes: list[Lane]) -> None:
        self._tx = tx
        self._shift = {lane.id: lane.key.rate * tx.now / 60 for lane in lanes}
        self._place: dict[int, tuple[float, float, str]] = {lane.id: START for lane in lanes}
        self._waiting: dict[int, int] = {lane.id: 0 for lane in lanes}
        self._dry: set[int] = set()
        self._heads: list[Head] = []

    async def next(self, count: int) -> list[Head]:
        best: list[Head] = []
        while len(best) < count:
            await self._refill(count)
            if not self._heads:
                break
            head = heapq.heappop(self._heads)
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
            heapq.heappush(
                self._heads, (row["rank"] - self._shift[lane], row["ordered_at"], row["id"], row["id"], lane)
            )
        for lane, number in got.items():
            self._waiting[lane] += number
            if number < each:
                self._dry.add(lane)

    def give_back(self, best: list[Head], seen: set[str]) -> None:
        """Candidates that were not locked, because enough were, come first the next time."""
        cut = max((place for place, head in enumerate(best) if head[3] in seen), default=len(best) - 1)
        for head in best[cut + 1 :]:
            heapq.heappush(self._heads, head)
            self._waiting[head[4]] += 1


class _Terms(NamedTuple):
    """What claims of one kind have in common: they are written by one statement."""

    status: str
    started_at: float | None
    limits: lease.Deadlines
    reserved: int


async def _hold(
    tx: Tx, engine: Engine, caller: Caller, request: ClaimRequest, agent: Row, chosen: list[Row]
) -> list[Assignment]:
    """Write the claims and say so."""
    if not chosen:
        return []
    resolver = await engine.book.of(tx, request.workspace)
    work = Work(tx, engine, caller)
    terms_of = _TermsBook(request, agent, tx.now)
    groups: dict[_Terms, list[tuple[str]]] = defaultdict(list)
    assignments = []
    for row in chosen:
        own = own_settings(msgspec.json.decode(row["body"])) if row["own_settings"] else None
        settings = resolver.settings(row["type"], own)
        terms = terms_of(row, settings)
        groups[terms].append((row["id"],))
        assignments.append(Assignment(row, request, terms, settings, tx.now))
        work.add_event(_event(work, request, row, running=terms.started_at is not None))
    for terms, items in groups.items():
        await _write(tx, request, terms, items)
    reserved = sum(terms.reserved * len(items) for terms, items in groups.items())
    await _note(tx, request, agent, reserved, chosen[-1]["type"])
    await work.save_events()
    return assignments


class _TermsBook:
    """Works out the terms of a claim, once for all tasks that are alike."""

    def __init__(self, request: ClaimRequest, agent: Row, now: float) -> None:
        self._request = request
        self._agent = agent
        self._now = now
        self._known: dict[Any, _Terms] = {}

    def __call__(self, row: Row, settings: Settings) -> _Terms:
        key = id(settings), row["timeout_sec"], row["cost_limit"]
        found = None if row["own_settings"] else self._known.get(key)
        if found is None:
            found = self._known[key] = self._work_out(row, settings)
        return found

    def _work_out(self, row: Row, settings: Settings) -> _Terms:
        running = self._request.start or settings.auto_start
        limits = _limits(settings, row, self._agent, running=running, now=self._now)
        status = State.RUNNING if running else State.CLAIMED
        reserved = (row["cost_limit"] or 0) if self._agent["budget"] is not None else 0
        return _Terms(status.value, self._now if running else None, limits, reserved)


async def _write(tx: Tx, request: ClaimRequest, terms: _Terms, items: list[tuple[str]]) -> None:
    await tx.run(
        "claim_tasks",
        items=items,
        agent=request.agent_id,
        runtime=request.runtime_id or request.agent_id,
        status=terms.status,
        started_at=terms.started_at,
        ack_by=terms.limits.ack_by,
        run_until=terms.limits.run_until,
        lease_until=terms.limits.lease_until,
        lease_check_at=terms.limits.check_at,
        reserved=terms.reserved,
        now=tx.now,
    )


def _limits(settings: Settings, row: Row, agent: Row, *, running: bool, now: float) -> lease.Deadlines:
    if running:
        return lease.at_start(settings, timeout_sec=row["timeout_sec"], claimed_at=now, now=now)
    ttl = agent["claim_ttl_sec"]
    return lease.at_claim(settings, timeout_sec=row["timeout_sec"], claim_ttl_sec=ttl, now=now)


def _event(work: Work, request: ClaimRequest, row: Row, *, running: bool) -> list[Any]:
    data = None
    if row["lost_agent_id"] is not None:
        data = {
            "original_consumer": row["lost_agent_id"],
            "new_consumer": request.agent_id,
            "message_id": ids.token(ids.show_task(row["id"]), row["fence"] + 1),
        }
    path = _TO_RUNNING if running else _TO_CLAIMED
    return [
        work.now, row["workspace"], row["id"], row["dag_id"], "claimed", path, f"agent:{request.agent_id}",
        work.caller.request_id, row["fence"] + 1, None, data,
    ]  # fmt: skip


NOTE_EVERY_SEC = 1.0
"""A claim is a sign of life; writing it once a second is often enough."""


async def _note(tx: Tx, request: ClaimRequest, agent: Row, reserved: int, type_: str) -> None:
    if reserved or tx.now - agent["last_heartbeat"] >= NOTE_EVERY_SEC or agent["last_type"] != type_:
        await tx.run(
            "note_claim",
            workspace=request.workspace,
            id=request.agent_id,
            now=tx.now,
            reserved=reserved,
            type=type_,
        )
    if request.runtime_id is not None:
        await tx.run("see_runtime", workspace=request.workspace, id=request.runtime_id, now=tx.now, beat_at=None)
