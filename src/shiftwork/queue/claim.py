"""Claiming: choose the best work an agent can and may do, hold it under a fence, and hand it over."""

from __future__ import annotations

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
from shiftwork.queue.pick import ClaimRequest, Picker
from shiftwork.queue.rows import load
from shiftwork.queue.work import Work, own_settings
from shiftwork.store.store import Row, Tx

_TO_CLAIMED = "ready>claimed"
_TO_RUNNING = "ready>claimed>running"


class Assignment:
    """A claimed task as its agent gets it. The whole task is built when it is asked for."""

    __slots__ = ("_around", "_now", "_request", "_row", "_settings", "_terms", "fence", "id", "token")

    def __init__(
        self, row: Row, request: ClaimRequest, terms: _Terms, settings: Settings, now: float, around: read.Around
    ) -> None:
        self._row = row
        self._request = request
        self._terms = terms
        self._settings = settings
        self._now = now
        self._around = around
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
        """Every field as of the claim, with what failed before and what it depended on."""
        row = load(self._row)
        row.status, row.fence, row.version = self._terms.status, self.fence, row.version + 1
        row.agent_id, row.runtime_id = self._request.agent_id, self._request.runtime_id or self._request.agent_id
        row.claimed_at, row.started_at, row.updated_at = self._now, self._terms.started_at, self._now
        row.ack_by, row.run_until, row.lease_until, row.lease_check_at = self._terms.limits
        row.reserved, row.heartbeat_at, row.available_at = self._terms.reserved, None, None
        return read.build(row, msgspec.json.decode(self._row["body"]), self._settings, self._now, self._around)


class ClaimAnswer(NamedTuple):
    assignments: list[Assignment]
    closed: tuple[str, ...] = ()
    """Scopes whose gate is closed: `*` for the whole workspace, else a type."""
    no_fit: int = 0
    """Ready tasks that were looked at and did not fit this agent now."""
    at_capacity: bool = False
    ready: frozenset[int] | None = None
    """Lanes that held work when this claim looked, also those it may not take; None where it did not look."""
    contended: bool = False
    """There was work for this agent, but others had it locked at that moment."""


async def claim(tx: Tx, engine: Engine, caller: Caller, request: ClaimRequest) -> ClaimAnswer:
    """Hand out up to `most` tasks, best first."""
    agent = await _agent(tx, engine, request)
    free = await _free_slots(tx, request, agent)
    if free <= 0:
        return ClaimAnswer([], at_capacity=True)
    wants = await _wants(tx, request, agent)
    lanes, ready, closed = await _eligible(tx, engine, request, wants)
    picker = Picker(tx, engine, request, agent, wants)
    chosen = await picker.pick(lanes, min(free, request.most))
    assignments = await _hold(tx, engine, caller, request, agent, chosen)
    contended = not chosen and not picker.misfits and any(lane.id < TARGETED for lane in lanes)
    return ClaimAnswer(assignments, closed, picker.misfits, ready=ready, contended=contended)


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
        raise AgentUnavailable(
            f"agent {request.agent_id!r} is {row['status']}", agent_id=request.agent_id, status=row["status"]
        )
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


async def _wants(tx: Tx, request: ClaimRequest, agent: Row) -> Wants:
    """What an agent announced, narrowed by what this claim asks for; one that announced nothing is as it says now."""
    if not agent["announced"]:
        await _restate(tx, request, agent)
        types = None if request.types is None else frozenset(request.types)
        return Wants(request.agent_id, types, frozenset(request.capabilities), frozenset(request.models))

    def of(column: str, asked: Sequence[str]) -> frozenset[str]:
        return frozenset(asked) | frozenset(msgspec.json.decode(agent[column] or "[]"))

    types = None if agent["types"] is None else frozenset(msgspec.json.decode(agent["types"]))
    if request.types is not None:
        types = frozenset(request.types) if types is None else types & frozenset(request.types)
    return Wants(request.agent_id, types, of("capabilities", request.capabilities), of("models", request.models))


async def _restate(tx: Tx, request: ClaimRequest, agent: Row) -> None:
    """Keep what others read about the agent true."""
    types = None if request.types is None else _names(request.types)
    said = types, _names(request.capabilities), _names(request.models)
    if said != (agent["types"], agent["capabilities"], agent["models"]):
        names = dict(zip(("types", "capabilities", "models"), said, strict=True))
        await tx.run("restate_agent", workspace=request.workspace, id=request.agent_id, **names)


async def _eligible(
    tx: Tx, engine: Engine, request: ClaimRequest, wants: Wants
) -> tuple[list[Lane], frozenset[int], tuple[str, ...]]:
    """Lanes with work that this agent may take, all lanes with work, and the gates that stand closed."""
    rows = await tx.all("open_lanes", bound=TARGETED, workspace=request.workspace, agent=request.agent_id)
    closed = {row["scope"] for row in rows if row["scope"] is not None}
    ready = [row["lane"] for row in rows if row["lane"] is not None]
    lanes = await engine.lanes.lanes(tx, ready)
    eligible = [
        lane
        for lane in lanes
        if lane.key.workspace == request.workspace
        and "*" not in closed
        and lane.key.type not in closed
        and wants.may_take(lane)
    ]
    return eligible, frozenset(ready), tuple(sorted(closed))


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
    around = await read.before_claim(tx, chosen)
    groups: dict[_Terms, list[tuple[str]]] = defaultdict(list)
    assignments = []
    for row in chosen:
        own = own_settings(msgspec.json.decode(row["body"])) if row["own_settings"] else None
        settings = resolver.settings(row["type"], own)
        terms = terms_of(row, settings)
        groups[terms].append((row["id"],))
        assignments.append(Assignment(row, request, terms, settings, tx.now, around.get(row["id"], read.NOTHING)))
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
