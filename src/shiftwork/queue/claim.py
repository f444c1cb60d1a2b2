"""Claiming: choose the best work an agent can and may do, hold it under a fence, and hand it over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import AgentUnavailable, AgentUnregistered
from shiftwork.core.resolve import Resolver
from shiftwork.core.settings import Settings
from shiftwork.core.states import State
from shiftwork.core.task import Task
from shiftwork.policy import lease
from shiftwork.policy.verdict import Trial, tests_of
from shiftwork.queue import health, read
from shiftwork.queue.content import inputs
from shiftwork.queue.content.inputs import Input
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.fence import Token
from shiftwork.queue.fifo import OldestFirst
from shiftwork.queue.lanes import TARGETED, Lane, Wants
from shiftwork.queue.money.booking import tell_closed
from shiftwork.queue.money.purse import Purse, day_begins, open_purse
from shiftwork.queue.pick import ClaimRequest, Picker
from shiftwork.queue.protection.admission import Admitted, admit
from shiftwork.queue.protection.gates import WHOLE, Closed, Gates
from shiftwork.queue.rows import blank_row
from shiftwork.queue.work import Work, as_json, own_settings
from shiftwork.store.store import Row, Tx

_TO_CLAIMED = "ready>claimed"
_TO_RUNNING = "ready>claimed>running"


class _Terms(NamedTuple):
    """What claims of one kind have in common: they are written by one statement."""

    status: str
    started_at: float | None
    limits: lease.Deadlines
    granted: int
    charged: bool


class _Grant:
    """What the claims of one kind in one answer share."""

    __slots__ = ("now", "request", "rows", "settings", "terms")

    def __init__(self, request: ClaimRequest, terms: _Terms, settings: Settings, now: float) -> None:
        self.request = request
        self.terms = terms
        self.settings = settings
        self.now = now
        self.rows: list[Row] = []


class Assignment:
    """A claimed task as its agent gets it. What is not asked for is not worked out: most is never looked at."""

    __slots__ = ("_around", "_grant", "_inputs", "_row")

    def __init__(self, row: Row, grant: _Grant, around: read.Around, found: list[Input]) -> None:
        self._row = row
        self._grant = grant
        self._around = around
        self._inputs = found

    @property
    def id(self) -> str:
        return ids.show_task(self._row["id"])

    @property
    def fence(self) -> int:
        return int(self._row["fence"]) + 1

    @property
    def claim(self) -> Token:
        """The claim as this process names it; the verbs take it as they take the text."""
        return Token(self._row["id"], self._row["fence"] + 1)

    @property
    def token(self) -> str:
        return ids.token(self.id, self.fence)

    @property
    def assignment_id(self) -> str:
        return self.token

    @property
    def type(self) -> str:
        return str(self._row["type"])

    @property
    def ack_required_by(self) -> float | None:
        return self._grant.terms.limits.ack_by

    @property
    def execution_deadline(self) -> float | None:
        return self._grant.terms.limits.run_until

    @property
    def heartbeat_interval_sec(self) -> float:
        return self._grant.settings.heartbeat_interval_sec

    @property
    def model(self) -> str | None:
        """The model to work with, where the task says which it may have."""
        return self._around.model

    @property
    def payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = msgspec.json.decode(self._row["body"]).get("payload", {})
        return payload

    @property
    def spec(self) -> dict[str, Any] | None:
        return self.task().spec

    @property
    def inputs(self) -> list[Input]:
        """What the references of the spec lead to, and the outputs of tasks it has waited for."""
        return self._inputs

    @property
    def tests(self) -> Trial | None:
        """What its output must pass before it is handed in, where it asks for that."""
        if '"test-pass"' not in self._row["body"]:  # most tasks ask for nothing, and need not be read for that
            return None
        return tests_of(msgspec.json.decode(self._row["body"]).get("output"))

    @property
    def traceparent(self) -> str | None:
        """The trace the task belongs to."""
        if '"traceparent"' not in self._row["body"]:  # most have none
            return None
        found: str | None = msgspec.json.decode(self._row["body"]).get("traceparent")
        return found

    def task(self) -> Task:
        """Every field as of the claim, with what failed before and what it depended on."""
        terms, request, now = self._grant.terms, self._grant.request, self._grant.now
        row = blank_row(**{name: value for name, value in self._row.items() if name not in _BESIDE})
        row.status, row.fence, row.version = terms.status, self.fence, row.version + 1
        row.agent_id, row.runtime_id = request.agent_id, request.runtime_id or request.agent_id
        row.claimed_at, row.started_at, row.updated_at = now, terms.started_at, now
        row.ack_by, row.run_until, row.lease_until, row.lease_check_at = terms.limits
        row.granted, row.charged, row.lost_agent_id = terms.granted, terms.charged, None
        return read.build(row, msgspec.json.decode(self._row["body"]), self._grant.settings, now, self._around)


_BESIDE = frozenset({"body", "place"})
"""What a claim reads besides the task's own columns."""


class ClaimAnswer(NamedTuple):
    assignments: list[Assignment]
    closed: tuple[Closed, ...] = ()
    """Gates that hand out nothing now: pauses, open breakers, cooldowns, limits that are reached."""
    no_fit: int = 0
    """Ready tasks that were looked at and did not fit this agent now."""
    at_capacity: bool = False
    ready: frozenset[int] | None = None
    """Lanes that held work when this claim looked, also those it may not take; None where it did not look."""
    contended: bool = False
    """There was work for this agent, but others had it locked at that moment."""
    slow_down_sec: float | None = None
    """For how long to go slow, since somebody met a rate limit."""
    unfinished: bool = False
    """There are more ready tasks than one claim looks at; the next claim of this agent goes on behind them."""
    look_again_sec: float | None = None
    """After how long the first of the tasks that are kept for other agents may be had."""


async def claim(tx: Tx, engine: Engine, caller: Caller, request: ClaimRequest) -> ClaimAnswer:
    """Hand out up to `most` tasks, best first."""
    claimer = await lock_claimer(tx, engine, request)
    await _see_runtime(tx, engine, request)
    wants = await _wants(tx, request, claimer.agent)
    answer = ClaimAnswer([])
    for _ in range(MOST_LOOKS):
        answer, again = await _look(Work(tx, engine, caller), request, claimer, wants, answer)
        if not again:
            break
        claimer = await lock_claimer(tx, engine, request)  # with what it has been granted by now
    if not answer.assignments:
        await health.note_ask(tx, claimer.agent, wants)
    return answer


async def _look(
    work: Work, request: ClaimRequest, claimer: Claimer, wants: Wants, before: ClaimAnswer
) -> tuple[ClaimAnswer, bool]:
    """Claim what there is; whether there may be other work for what could not be let go."""
    tx, engine, agent = work.tx, work.engine, claimer.agent
    lanes, ready, gates, free = await eligible(tx, engine, request, claimer, wants)
    most = min(free, request.most - len(before.assignments))
    if most <= 0:
        return before._replace(at_capacity=True), False
    purse = await open_purse(tx, engine, request.workspace, agent)
    if purse.day_is_spent:
        return before._replace(closed=(_day_is_spent(tx.now),)), False
    picker = (OldestFirst if request.fifo else Picker)(tx, engine, request, agent, wants, gates, purse)
    chosen = await purse.lock(tx, await picker.pick(lanes, most))
    admitted = await admit(work, gates, lanes, chosen)
    handed = await hand_over(work, request, agent, purse, admitted, wants)
    assignments = [*before.assignments, *handed]
    held = await purse.hold_back(tx)
    again = len(admitted.rows) < most and (len(admitted.rows) < len(chosen) or bool(held))
    busy = not picker.misfits and any(lane.id < TARGETED for lane in lanes)
    contended = not chosen and (busy or bool(held))  # behind what was held back there may be more
    closed, slow = tuple(gates.closed), gates.slow_down_sec
    misfits = before.no_fit + picker.misfits
    answer = ClaimAnswer(assignments, closed, misfits, ready=ready, contended=contended, slow_down_sec=slow)
    sooner = None if picker.sooner_at is None else picker.sooner_at - tx.now
    return answer._replace(unfinished=picker.unfinished, look_again_sec=sooner), again


MOST_SLOTS = 2**31
"""Of an agent without a limit."""

MOST_LOOKS = 4
"""What a breaker or a limit did not let go has closed its gate: then the claim looks for other work."""


def _day_is_spent(now: float) -> Closed:
    return Closed("budget", WHOLE, day_begins(now) + 86_400)


class Claimer(NamedTuple):
    """An agent, locked, and what it finds: rows of lanes with work, closed gates, limits, and how much it holds."""

    agent: Row
    found: Sequence[Row]


async def lock_claimer(tx: Tx, engine: Engine, request: ClaimRequest) -> Claimer:
    """The agent's row, locked before its limits are counted; made from the request where that is allowed."""
    found = await find_claimer(tx, request.workspace, request.agent_id, request.runtime_id)
    if not found:
        settings = (await engine.book.of(tx, request.workspace)).settings()
        if settings.require_registration:
            raise AgentUnregistered(f"agent {request.agent_id!r} is not registered", agent_id=request.agent_id)
        await register(tx, engine, request)
        found = await find_claimer(tx, request.workspace, request.agent_id, request.runtime_id)
    agent = found[0]
    if agent["status"] in {"draining", "offline"}:
        raise AgentUnavailable(
            f"agent {request.agent_id!r} is {agent['status']}", agent_id=request.agent_id, status=agent["status"]
        )
    if agent["status"] == "failed":
        await tx.run("set_agent_status", workspace=request.workspace, id=request.agent_id, status="active")
    return Claimer(agent, found)


async def find_claimer(tx: Tx, workspace: str, agent_id: str, runtime_id: str | None = None) -> Sequence[Row]:
    """The agent in each row, with what it finds; counted again where another claim of it was faster."""
    names = {"bound": TARGETED, "workspace": workspace, "agent": agent_id, "runtime": runtime_id}
    found = await tx.all("lock_claimer", **names)
    if found and not found[0]["exact"]:
        return await tx.all("lock_claimer", **names)
    return found


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


async def _see_runtime(tx: Tx, engine: Engine, request: ClaimRequest) -> None:
    """Whoever asks for work is there, also when there is none; written where it matters, and not every time."""
    settings = (await engine.book.of(tx, request.workspace)).settings()
    if request.runtime_id is None or settings.runtime_offline_sec is None:
        return
    before = await tx.one("read_runtime", workspace=request.workspace, id=request.runtime_id)
    if before is None or before["status"] != "active" or tx.now - before["seen_at"] >= NOTE_EVERY_SEC:
        await tx.run("see_runtime", workspace=request.workspace, id=request.runtime_id, now=tx.now, heartbeat_at=None)


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


class _Eligible(NamedTuple):
    """What an agent may take: lanes with work, all lanes with work, the gates as they stand for it, its free slots."""

    lanes: list[Lane]
    ready: frozenset[int]
    gates: Gates
    free: int


async def eligible(tx: Tx, engine: Engine, request: ClaimRequest, claimer: Claimer, wants: Wants) -> _Eligible:
    agent, rows = claimer
    slots = agent["max_concurrent_tasks"]
    resolver = await engine.book.of(tx, request.workspace)
    gates = Gates((row for row in rows if row["scope"] is not None), resolver, agent, wants, tx.now)
    ready = [row["lane"] for row in rows if row["lane"] is not None]
    lanes = await engine.lanes.lanes(tx, ready)
    through = [lane for lane in lanes if lane.key.workspace == request.workspace and gates.let_through(lane)]
    held = sum(row["held"] or 0 for row in rows)
    return _Eligible(through, frozenset(ready), gates, MOST_SLOTS if slots is None else slots - held)


async def hand_over(
    work: Work, request: ClaimRequest, agent: Row, purse: Purse, admitted: Admitted, wants: Wants | None = None
) -> list[Assignment]:
    """Write the claims and say so."""
    chosen, tx, engine, caller = admitted.rows, work.tx, work.engine, work.caller
    for closed in await purse.pay(tx, chosen):
        tell_closed(work, closed)
    if not chosen:
        await work.save_events()
        return []
    grants = _Grants(await engine.book.of(tx, request.workspace), request, agent, purse, tx.now)
    around = await read.before_claim(tx, chosen)
    edges = {id_: beside.dependencies for id_, beside in around.items()}
    found = await inputs.resolve(tx, request.workspace, chosen, edges)
    assignments = []
    for row in chosen:
        grant = grants.of(row)
        grant.rows.append(row)
        beside = around.get(row["id"], read.NOTHING)
        if row["id"] in admitted.models:
            beside = beside._replace(model=admitted.models[row["id"]])
        assignments.append(Assignment(row, grant, beside, found.get(row["id"], [])))
    for grant in grants.all:
        await _write(tx, caller, grant)
    granted = sum(grant.terms.granted * len(grant.rows) for grant in grants.all)
    await _note(tx, request, agent, granted, chosen[-1]["type"], wants)
    for grant in grants.all:
        work.add_events(_events(caller, grant))
    await work.save_events()
    return assignments


class _Grants:
    """Works out the terms of a claim, once for all tasks that are alike."""

    def __init__(self, resolver: Resolver, request: ClaimRequest, agent: Row, purse: Purse, now: float) -> None:
        self._resolver = resolver
        self._purse = purse
        self._request = request
        self._agent = agent
        self._now = now
        self._alike: dict[Any, _Grant] = {}
        self.all: list[_Grant] = []

    def of(self, row: Row) -> _Grant:
        if row["own_settings"]:
            return self._make(row, own_settings(msgspec.json.decode(row["body"])))
        key = row["type"], row["timeout_sec"], self._purse.grants.get(row["id"])
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = self._make(row, None)
        return found

    def _make(self, row: Row, own: dict[str, Any] | None) -> _Grant:
        settings = self._resolver.settings(row["type"], own)
        running = self._request.start or settings.auto_start
        limits = _limits(settings, row, self._agent, running=running, now=self._now)
        status = State.RUNNING if running else State.CLAIMED
        granted = self._purse.grants.get(row["id"])
        started = self._now if running else None
        terms = _Terms(status.value, started, limits, granted or 0, granted is not None)
        self.all.append(_Grant(self._request, terms, settings, self._now))
        return self.all[-1]


async def _write(tx: Tx, caller: Caller, grant: _Grant) -> None:
    request, terms = grant.request, grant.terms
    await tx.run(
        "claim_tasks",
        items=[(row["id"],) for row in grant.rows],
        agent=request.agent_id,
        runtime=request.runtime_id or request.agent_id,
        holder=caller.holder,
        status=terms.status,
        started_at=terms.started_at,
        ack_by=terms.limits.ack_by,
        run_until=terms.limits.run_until,
        lease_until=terms.limits.lease_until,
        lease_check_at=terms.limits.check_at,
        granted=terms.granted,
        charged=terms.charged,
        now=tx.now,
    )


def _limits(settings: Settings, row: Row, agent: Row, *, running: bool, now: float) -> lease.Deadlines:
    if running:
        return lease.at_start(settings, timeout_sec=row["timeout_sec"], claimed_at=now, now=now)
    ttl = agent["claim_ttl_sec"]
    return lease.at_claim(settings, timeout_sec=row["timeout_sec"], claim_ttl_sec=ttl, now=now)


def _events(caller: Caller, grant: _Grant) -> list[tuple[Any, ...]]:
    agent_id, now = grant.request.agent_id, grant.now
    messages = dict(grant.request.messages)
    path = _TO_CLAIMED if grant.terms.started_at is None else _TO_RUNNING
    actor, request_id = f"agent:{agent_id}", caller.request_id
    return [
        (
            now, row["workspace"], row["id"], row["dag_id"], "claimed", path, actor, request_id, row["fence"] + 1, None,
            _beside(row, agent_id, messages.get(row["id"])),
        )
        for row in grant.rows
    ]  # fmt: skip


def _beside(row: Row, agent_id: str, message_id: str | None) -> str | None:
    """Whom it was taken over from, and the entry of a stream it came with; most claims have neither."""
    if row["lost_agent_id"] is None:
        return None if message_id is None else as_json({"message_id": message_id})
    message_id = message_id or ids.token(ids.show_task(row["id"]), row["fence"] + 1)
    return as_json({"original_consumer": row["lost_agent_id"], "new_consumer": agent_id, "message_id": message_id})


NOTE_EVERY_SEC = 1.0
"""A claim is a sign of life of its runtime; writing it once a second is often enough."""


async def _note(
    tx: Tx, request: ClaimRequest, agent: Row, granted: int, type_: str, wants: Wants | None = None
) -> None:
    """Written each time: another claim of this agent that waited for us must see that it did."""
    names = {"workspace": request.workspace, "id": request.agent_id}
    asked, asked_at = (None, None) if wants is None else (wants.text(), tx.now)
    await tx.run("note_claim", **names, now=tx.now, granted=granted, type=type_, asked=asked, asked_at=asked_at)
    seen_at = agent["runtime_seen_at"]
    if request.runtime_id is not None and (seen_at is None or tx.now - seen_at >= NOTE_EVERY_SEC):
        await tx.run("see_runtime", workspace=request.workspace, id=request.runtime_id, now=tx.now, heartbeat_at=None)
