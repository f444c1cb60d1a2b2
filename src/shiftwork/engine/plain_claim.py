"""Claims in one statement if nothing special applies to the agent or the task (PostgreSQL only).

The caller passes what it knows of the agent and of the lanes, and the terms for a task of each lane. The statement
`claim_plain` checks all of it under the agent's lock and takes tasks only if it is true. Otherwise nothing is changed,
and `claim` runs instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from shiftwork.agents import liveness
from shiftwork.budgets.allocator import open_allocator
from shiftwork.engine import read
from shiftwork.engine.claim import (
    NOTE_EVERY_SEC,
    TO_CLAIMED,
    TO_RUNNING,
    ClaimAnswer,
    Grants,
    claim,
    filter_for,
    stated,
)
from shiftwork.engine.engine import Caller, Engine, KnownAgent
from shiftwork.engine.lanes import TARGETED, ClaimFilter, Lane
from shiftwork.engine.pick import ClaimRequest
from shiftwork.settings.resolve import Resolver
from shiftwork.store.store import Row, Tx

MAX_LANES = 300
"""All lanes known to this process are sent, up to this many."""
MAX_TASKS = 100
"""Larger claims gain nothing: the server spends more on their rows than the round trips save."""
MAX_TERMS = 16
"""The same for lanes that the agent may take, whose terms must be computed."""


async def claim_one(tx: Tx, engine: Engine, caller: Caller, request: ClaimRequest) -> ClaimAnswer:
    """Make a claim that was not joined with others."""
    answer = await claim_plain(tx, engine, caller, request)
    return await claim(tx, engine, caller, request) if answer is None else answer


async def claim_plain(tx: Tx, engine: Engine, caller: Caller, request: ClaimRequest) -> ClaimAnswer | None:
    """Hand out up to `most` tasks of one lane, best first; None if the claim is not plain."""
    workspace = request.workspace
    known = _known(engine, request)
    if known is None or not engine.plain_claims.is_likely(workspace):
        return None
    resolver = await engine.settings_cache.load(tx, workspace)
    settings = resolver.settings()
    if settings.budget.daily_usd is not None:
        return None
    agent = {"id": request.agent_id, **known._asdict(), **_UNLIMITED}
    allocator = await open_allocator(tx, engine, workspace, agent)
    claim_filter = filter_for(request, agent)
    lanes, others = _sort(engine.lanes.all(), workspace, claim_filter, resolver)
    if not allocator.unlimited or len(lanes) > MAX_TERMS or len(others) > MAX_LANES:
        return None
    grants = Grants(resolver, request, agent, allocator, tx.now)
    rows = await tx.alone(
        "claim_plain",
        bound=TARGETED,
        workspace=workspace,
        agent=request.agent_id,
        **known._asdict(),
        most=request.most,
        ahead=request.ahead,
        runtime=request.runtime_id,
        holder=caller.holder,
        terms=[_terms(lane, grants, resolver.settings(lane.key.type).timeout_sec) for lane in lanes],
        others=[(id_,) for id_ in others],
        asked=claim_filter.text(),
        actor=f"agent:{request.agent_id}",
        request_id=caller.request_id,
        always_seen=settings.runtime_offline_sec is not None,
        seen_after=tx.now - NOTE_EVERY_SEC,
        now=tx.now,
    )
    return None if not rows else _answer(engine, workspace, rows, grants, tx.now)


_UNLIMITED = {"budget": None, "spent": 0, "granted": 0, "claim_ttl_sec": None}
"""The facts that the statement verifies."""


def _known(engine: Engine, request: ClaimRequest) -> KnownAgent | None:
    if request.fifo or request.messages or request.most > MAX_TASKS:
        return None
    known = engine.known_agents.get((request.workspace, request.agent_id))
    if known is None or known.announced:
        return known
    types, capabilities, models = stated(request)  # if the row differs, the ordinary claim updates it
    return KnownAgent(announced=False, types=types, capabilities=capabilities, models=models)


def _sort(
    lanes: Sequence[Lane], workspace: str, claim_filter: ClaimFilter, resolver: Resolver
) -> tuple[list[Lane], list[int]]:
    """The plain lanes that the agent may take, and those it may not. Other lanes need the ordinary claim."""
    own: list[Lane] = []
    others: list[int] = []
    for lane in lanes:
        key = lane.key
        if key.workspace != workspace or not claim_filter.may_take(lane):
            others.append(lane.id)
        elif not (key.mixed or key.serial or key.models or resolver.settings(key.type).use_before_reset):
            own.append(lane)
    return own, others


def _terms(lane: Lane, grants: Grants, timeout_sec: float | None) -> tuple[object, ...]:
    """In the column order of `terms` in the statement `claim_plain`; of tasks with the usual time limit."""
    type_ = lane.key.type
    terms = grants.of({"id": None, "type": type_, "own_settings": False, "timeout_sec": timeout_sec}).terms
    path = TO_CLAIMED if terms.started_at is None else TO_RUNNING
    return (lane.id, type_, path, timeout_sec, terms.status, terms.started_at, *terms.limits)


def _answer(engine: Engine, workspace: str, rows: Sequence[Row], grants: Grants, now: float) -> ClaimAnswer | None:
    found = rows[0]
    if not found["known"]:
        return None
    got_any = found["id"] is not None
    is_plain = found["is_plain"] and (not got_any or all(row["plain"] for row in rows))
    engine.plain_claims.record(workspace, is_plain=is_plain)
    if not is_plain:
        return None
    if not got_any and (found["agent_asked_at"] is None or now - found["agent_asked_at"] >= liveness.NOTE_EVERY_SEC):
        return None  # the agent's last claim must be recorded
    if found["free"] <= 0:
        return ClaimAnswer([], at_capacity=True)
    ready = frozenset(map(int, found["ready"][1:-1].split(","))) if found["ready"] else frozenset[int]()
    if not got_any:
        return ClaimAnswer([], ready=ready, contended=found["open_lanes"] > 0)
    return ClaimAnswer([grants.of(row).add(row, read.NOTHING, None) for row in rows], ready=ready)
