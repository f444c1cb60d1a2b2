"""Makes concurrent claims of several agents in one transaction whose statements serve all of them.

It serves plain claims of plain tasks: no budget, no limit, no account with windows, no breaker on trial, no preference
for an agent. All other claims are left to `claim`, one transaction each.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from shiftwork.accounts import choice
from shiftwork.agents import liveness
from shiftwork.artifacts import inputs
from shiftwork.budgets.allocator import BudgetAllocator, open_allocator
from shiftwork.engine import read
from shiftwork.engine.assignment import Assignment
from shiftwork.engine.claim import (
    MAX_SLOTS,
    NOTE_EVERY_SEC,
    ClaimAnswer,
    Grant,
    Grants,
    emit_claimed,
    filter_for,
    is_as_stated,
    register,
)
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.lane_merge import OVERFETCH, START, LaneMerge
from shiftwork.engine.lanes import TARGETED, ClaimFilter, Lane
from shiftwork.engine.pick import ClaimRequest
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.fairness import policy
from shiftwork.limits.gates import Gates
from shiftwork.store.store import Row, Tx


class Asked(NamedTuple):
    """One claim and its caller."""

    request: ClaimRequest
    caller: Caller


class Taken(enum.Enum):
    NOTHING = enum.auto()
    SOME = enum.auto()
    ALL = enum.auto()


class Claimer:
    """A plain claim: its agent, what it may take, and what it got."""

    def __init__(
        self,
        asked: Asked,
        agent: Row,
        allocator: BudgetAllocator,
        claim_filter: ClaimFilter,
        gates: Gates,
        lanes: list[Lane],
    ) -> None:
        self.asked = asked
        self.agent = agent
        self.allocator = allocator
        self.claim_filter = claim_filter
        self.gates = gates
        self.lanes = lanes
        self.room = 0
        """How many tasks it may get."""
        self.rows: list[Row] = []
        self.assignments: list[Assignment] = []
        self.taken: Taken = Taken.NOTHING
        """How much of the work that its group asked for was found."""


async def claim_together(
    tx: Tx, engine: Engine, _: Caller, workspace: str, asked: Sequence[Asked]
) -> list[ClaimAnswer | None]:
    """Hand out work to several agents of one workspace, best first. None stands for a claim that must be made alone."""
    settings = (await engine.settings_cache.load(tx, workspace)).settings()
    if policy.is_fair_share_on(settings.fair_share) or settings.affinity_sec:
        return [None] * len(asked)
    agents = await _lock_agents(tx, engine, workspace, asked)
    found = await tx.all("find_work", workspace=workspace, bound=TARGETED, items=[(id_,) for id_ in agents])
    claimers = await _claimers(tx, engine, asked, agents, found)
    _share_slots(claimers.values(), found)
    groups: dict[frozenset[int], list[Claimer]] = defaultdict(list)
    for claimer in claimers.values():
        if claimer.room and claimer.lanes:
            groups[frozenset(lane.id for lane in claimer.lanes)].append(claimer)
    left_alone: set[Claimer] = set()
    events = UnitOfWork(tx, engine, Caller())
    for group in groups.values():
        left_alone |= await _distribute(tx, group)
        await _hand_over(tx, engine, workspace, group, events)
    await _note_agents(tx, workspace, claimers.values())
    await _note_runtimes(tx, workspace, claimers.values(), always=settings.runtime_offline_sec is not None)
    await events.save_events()
    ready = frozenset(row["lane"] for row in found if row["lane"] is not None)
    return [
        None if claimer is None or claimer in left_alone else _answer(claimer, ready)
        for claimer in (claimers.get(place) for place in range(len(asked)))
    ]


async def _lock_agents(tx: Tx, engine: Engine, workspace: str, asked: Sequence[Asked]) -> dict[str, Row]:
    """Lock agents in id order, so that concurrent claims cannot deadlock. New agents are registered first."""
    requests = {each.request.agent_id: each.request for each in asked if _is_plain(each.request)}
    items = [(workspace, id_) for id_ in sorted(requests)]
    found = await tx.all("lock_agents", items=items)
    settings = (await engine.settings_cache.load(tx, workspace)).settings()
    if len(found) < len(items) and not settings.require_registration:
        for id_ in sorted(requests.keys() - {row["id"] for row in found}):
            await register(tx, engine, requests[id_])
        found = await tx.all("lock_agents", items=items)
    return {row["id"]: row for row in found}


def _is_plain(request: ClaimRequest) -> bool:
    return not request.fifo and not request.messages


async def _claimers(
    tx: Tx, engine: Engine, asked: Sequence[Asked], agents: Mapping[str, Row], found: Sequence[Row]
) -> dict[int, Claimer]:
    """The plain ones of these claims, by their place."""
    gates = [row for row in found if row["scope"] is not None]
    open_lanes = await engine.lanes.lanes(tx, [row["lane"] for row in found if row["lane"] is not None])
    claimers = {}
    for place, each in enumerate(asked):
        agent = agents.get(each.request.agent_id)
        if agent is None or not _is_plain(each.request) or agent["status"] != "active":
            continue
        claimer = await _claimer(tx, engine, each, agent, gates, open_lanes)
        if claimer is not None:
            claimers[place] = claimer
    return claimers


async def _claimer(
    tx: Tx, engine: Engine, asked: Asked, agent: Row, gate_rows: Sequence[Row], open_lanes: Sequence[Lane]
) -> Claimer | None:
    request = asked.request
    allocator = await open_allocator(tx, engine, request.workspace, agent)
    if not allocator.unlimited or not is_as_stated(request, agent) or not choice.is_plain(agent, gate_rows):
        return None
    claim_filter = filter_for(request, agent)
    resolver = await engine.settings_cache.load(tx, request.workspace)
    gates = Gates(gate_rows, resolver, agent, claim_filter, tx.now)
    lanes = [lane for lane in open_lanes if lane.key.workspace == request.workspace and gates.open_for(lane)]
    if gates.limits or gates.on_trial or any(_is_special(lane) for lane in lanes):
        return None
    return Claimer(asked, agent, allocator, claim_filter, gates, lanes)


def _is_special(lane: Lane) -> bool:
    """Whether its tasks have requirements beyond those of the lane."""
    return bool(lane.key.mixed or lane.key.serial or lane.key.models)


def _share_slots(claimers: Collection[Claimer], found: Sequence[Row]) -> None:
    """Several claims of one agent share its free slots."""
    held = {row["agent_id"]: row["held"] for row in found if row["held"] is not None}
    free: dict[str, int] = {}
    for claimer in claimers:
        id_, slots = claimer.agent["id"], claimer.agent["max_concurrent_tasks"]
        left = free.setdefault(id_, MAX_SLOTS if slots is None else slots - held.get(id_, 0))
        request = claimer.asked.request
        claimer.room = max(0, min(left + request.ahead, request.most))
        free[id_] -= claimer.room


async def _distribute(tx: Tx, group: Sequence[Claimer]) -> set[Claimer]:
    """Take tasks for claims with the same filter, and deal them out in turn. Returns the claims that must be made
    alone.

    If a task is not plain, one of the claims must: otherwise such tasks could be skipped as long as there are others.
    """
    wanted = sum(claimer.room for claimer in group)
    rows = await _take(tx, group[0].lanes, wanted)
    for claimer in group:
        claimer.taken = Taken.ALL if len(rows) == wanted else Taken.SOME if rows else Taken.NOTHING
    plain = [row for row in rows if row["budget_id"] is None and row["last_agent_id"] is None]
    some_are_special = len(plain) < len(rows)
    served = group[:-1] if some_are_special else group
    for row, claimer in zip(plain, _turns(served), strict=False):
        claimer.rows.append(row)
    return {claimer for claimer in group if not claimer.rows} if some_are_special else set()


def _turns(claimers: Sequence[Claimer]) -> Iterator[Claimer]:
    """Each claim in turn, until it has all it may take."""
    for turn in range(max((claimer.room for claimer in claimers), default=0)):
        yield from (claimer for claimer in claimers if turn < claimer.room)


async def _take(tx: Tx, lanes: Sequence[Lane], count: int) -> list[Row]:
    """Lock the best tasks of these lanes, skipping those that others have locked."""
    if len(lanes) == 1:
        start = dict(zip(("rank", "ordered_at", "id"), START, strict=True))
        return list(await tx.all("take_from_lane", lane=lanes[0].id, count=count, now=tx.now, **start))
    merge = LaneMerge(tx, lanes, {})
    taken: list[Row] = []
    while len(taken) < count:
        wanted = count - len(taken)
        best = await merge.next(wanted)
        if not best:
            break
        items = [(place, head[3], head[4]) for place, head in enumerate(best)]
        rows = await tx.all("take_chosen", items=items, count=wanted, now=tx.now)
        merge.push_back(best, {row["id"] for row in rows})
        taken += rows
        if not rows and len(best) < wanted * OVERFETCH:
            break
    return taken


async def _hand_over(tx: Tx, engine: Engine, workspace: str, group: Sequence[Claimer], events: UnitOfWork) -> None:
    """Write these claims. The next group looks for work after it, so that it does not find the same tasks."""
    rows = [row for claimer in group for row in claimer.rows]
    if not rows:
        return
    resolver = await engine.settings_cache.load(tx, workspace)
    context = await read.before_claim(tx, rows)
    edges = {id_: extra.dependencies for id_, extra in context.items()}
    found = await inputs.resolve(tx, workspace, rows, edges)
    items = []
    for claimer in group:
        request, caller = claimer.asked
        grants = Grants(resolver, request, claimer.agent, claimer.allocator, tx.now)
        for row in claimer.rows:
            extra = context.get(row["id"], read.NOTHING)
            claimer.assignments.append(grants.of(row).add(row, extra, found.get(row["id"])))
        for grant in grants.all:
            emit_claimed(events, caller, grant)
            items += _written(grant, caller)
    await tx.run("claim_tasks_of_many", items=sorted(items), now=tx.now)


def _written(grant: Grant, caller: Caller) -> list[tuple[object, ...]]:
    """In the column order of the statement `claim_tasks_of_many`."""
    request, terms = grant.request, grant.terms
    runtime = request.runtime_id or request.agent_id
    limits = terms.limits
    return [
        (row["id"], terms.status, request.agent_id, runtime, caller.holder, terms.started_at)
        + (limits.ack_by, limits.run_until, limits.lease_until, limits.check_at)
        for row in grant.rows
    ]


async def _note_agents(tx: Tx, workspace: str, claimers: Collection[Claimer]) -> None:
    """A claim is a sign of life of its agent.

    An agent that got work is written each time: a concurrent claim detects by it that it had to wait for us.
    """
    noted: dict[str, tuple[str, str | None, str]] = {}
    for claimer in claimers:
        id_, asked_at = claimer.agent["id"], claimer.agent["asked_at"]
        if claimer.rows or asked_at is None or tx.now - asked_at >= liveness.NOTE_EVERY_SEC:
            last = claimer.rows[-1]["type"] if claimer.rows else noted.get(id_, (id_, None, ""))[1]
            noted[id_] = id_, last, claimer.claim_filter.text()
    if noted:
        await tx.run("note_claims", workspace=workspace, items=sorted(noted.values()), now=tx.now)


async def _note_runtimes(tx: Tx, workspace: str, claimers: Collection[Claimer], *, always: bool) -> None:
    """A claim is also a sign of life of its runtime: if leases depend on that, it is written even without work."""
    asking = [(claimer.asked.request.runtime_id, bool(claimer.rows)) for claimer in claimers]
    named = {runtime_id for runtime_id, got_work in asking if runtime_id is not None and (got_work or always)}
    if not named:
        return
    rows = await tx.all("runtimes_seen", workspace=workspace, items=[(id_,) for id_ in sorted(named)])
    fresh = {row["id"] for row in rows if row["status"] == "active" and tx.now - row["seen_at"] < NOTE_EVERY_SEC}
    if stale := sorted(named - fresh):
        await tx.run("touch_runtimes", workspace=workspace, items=[(id_,) for id_ in stale], now=tx.now)


def _answer(claimer: Claimer, ready: frozenset[int]) -> ClaimAnswer:
    """If the group got less than it asked for, its lanes are now empty; if it got nothing, others have the rest
    locked.
    """
    lanes = frozenset(lane.id for lane in claimer.lanes)
    return ClaimAnswer(
        claimer.assignments,
        tuple(claimer.gates.closed),
        at_capacity=not claimer.room,
        ready=ready - lanes if claimer.room and claimer.taken is Taken.SOME else ready,
        contended=bool(claimer.room and lanes) and claimer.taken is Taken.NOTHING,
        slow_down_sec=claimer.gates.slow_down_sec,
        plenty=claimer.taken is Taken.ALL,
    )
