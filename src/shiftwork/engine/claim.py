"""Claiming: choose the best eligible tasks, lock them under a fence, and assign them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.accounts import choice
from shiftwork.accounts.choice import AccountUse
from shiftwork.agents import liveness
from shiftwork.artifacts import inputs
from shiftwork.budgets.allocator import BudgetAllocator, open_allocator
from shiftwork.budgets.booking import emit_budget_closed
from shiftwork.budgets.policy import day_begins
from shiftwork.engine import lease_policy, read
from shiftwork.engine.assignment import Assignment, Input, Terms
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.lanes import TARGETED, ClaimFilter, Lane
from shiftwork.engine.new_events import Alike, BatchItem, NewEvent
from shiftwork.engine.pick import ClaimRequest, OldestFirst, Picker
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork, own_settings
from shiftwork.limits.admission import Admitted, admit
from shiftwork.limits.gates import WHOLE, Gates
from shiftwork.limits.model import Closed
from shiftwork.model import ids
from shiftwork.model.errors import AgentUnavailable, AgentUnregistered
from shiftwork.model.outcome import Token
from shiftwork.model.states import State
from shiftwork.model.task import Task
from shiftwork.settings.model import Settings
from shiftwork.settings.resolve import Resolver
from shiftwork.store.store import Row, Tx

TO_CLAIMED = "ready>claimed"
TO_RUNNING = "ready>claimed>running"


class _Terms(NamedTuple):
    """The common terms of claims that one statement writes."""

    status: str
    started_at: float | None
    limits: lease_policy.Deadlines
    granted: int
    charged: bool


class Grant:
    """What the claims of one kind in one answer share."""

    __slots__ = ("now", "request", "rows", "settings", "shown", "terms")

    def __init__(self, request: ClaimRequest, terms: _Terms, settings: Settings, now: float) -> None:
        self.request = request
        self.terms = terms
        self.settings = settings
        self.now = now
        self.shown = Terms(terms.limits.ack_by, terms.limits.run_until, settings.heartbeat_interval_sec)
        self.rows: list[Row] = []

    def add(self, row: Row, context: read.TaskContext, inputs: list[Input] | None) -> Assignment:
        """Add a task on these terms."""
        self.rows.append(row)
        claim, shown, body = Token(row["id"], row["fence"] + 1), self.shown, row["body"]
        return Assignment(claim, row["type"], shown, self, row, context, body, context.model, context.account, inputs)

    def build(self, row: Row, context: read.TaskContext) -> Task:
        """Every field as of the claim, with what failed before and what it depended on."""
        terms, request, now = self.terms, self.request, self.now
        columns = {name: value for name, value in row.items() if name not in _EXTRA}
        claimed = TaskRow(status=terms.status, **columns)
        claimed.fence, claimed.version = claimed.fence + 1, claimed.version + 1
        claimed.agent_id, claimed.runtime_id = request.agent_id, request.runtime_id or request.agent_id
        claimed.claimed_at, claimed.started_at, claimed.updated_at = now, terms.started_at, now
        claimed.ack_by, claimed.run_until, claimed.lease_until, claimed.lease_check_at = terms.limits
        claimed.granted, claimed.charged, claimed.lost_agent_id = terms.granted, terms.charged, None
        return read.build(claimed, msgspec.json.decode(row["body"]), self.settings, now, context)


_EXTRA = frozenset(
    {"body", "place", "known", "is_plain", "free", "agent_asked_at", "ready", "open_lanes", "plain"},
)
"""What a claim reads in addition to the task's own columns."""


class ClaimAnswer(NamedTuple):
    assignments: list[Assignment]
    closed: tuple[Closed, ...] = ()
    """Closed gates: pauses, open breakers, cooldowns, exhausted limits."""
    no_fit: int = 0
    """Ready tasks that were considered but did not fit this agent now."""
    at_capacity: bool = False
    ready: frozenset[int] | None = None
    """Lanes that held work when this claim looked, including those it may not take; None if it did not look."""
    contended: bool = False
    """Whether there was work for this agent, but locked by other transactions."""
    slow_down_sec: float | None = None
    """How long to slow down, because an agent hit a rate limit."""
    unfinished: bool = False
    """Whether there are more ready tasks than one claim scans; the agent's next claim continues after them."""
    look_again_sec: float | None = None
    """Seconds until the first task kept for other agents becomes available to this one."""
    plenty: bool = False
    """Whether several joined claims all got what they asked for, so that there is likely more work."""


async def claim(tx: Tx, engine: Engine, caller: Caller, request: ClaimRequest) -> ClaimAnswer:
    """Hand out up to `most` tasks, best first."""
    claimer = await lock_claimer(tx, engine, request)
    await _see_runtime(tx, engine, request)
    claim_filter = await _wants(tx, request, claimer.agent)
    answer = ClaimAnswer([])
    used: list[tuple[AccountUse, Sequence[Row]]] = []
    for _ in range(MAX_POLLS):
        work = UnitOfWork(tx, engine, caller)
        answer, again = await _pick_on_accounts(work, request, claimer, claim_filter, answer, used)
        if not again:
            break
        claimer = await lock_claimer(tx, engine, request)  # with what it has been granted by now
    await choice.record(UnitOfWork(tx, engine, caller), used)
    if not answer.assignments:
        await liveness.record_ask(tx, claimer.agent, claim_filter)
    return answer


async def _pick_on_accounts(
    work: UnitOfWork,
    request: ClaimRequest,
    claimer: Claimer,
    claim_filter: ClaimFilter,
    before: ClaimAnswer,
    used: list[tuple[AccountUse, Sequence[Row]]],
) -> tuple[ClaimAnswer, bool]:
    """Claim on the first account of the agent that has room and finds work; `used` gets what was claimed on it."""
    full: list[Closed] = []
    answer, again = before, False
    for use in await choice.uses_of(work.tx, request.workspace, claimer.agent, claimer.found):
        if use.room(work.now) < 1:
            full.append(use.closed())
            continue
        answer, again, rows = await _pick(work, request, claimer, claim_filter, before, use)
        used.append((use, rows))
        if again or answer.at_capacity or len(answer.assignments) > len(before.assignments):
            return answer, again
    if full:
        soon = min(choice.LOOK_AGAIN_SEC, answer.look_again_sec or choice.LOOK_AGAIN_SEC)
        answer = answer._replace(closed=(*answer.closed, *full), look_again_sec=soon)
    return answer, again


async def _pick(
    work: UnitOfWork,
    request: ClaimRequest,
    claimer: Claimer,
    claim_filter: ClaimFilter,
    before: ClaimAnswer,
    use: AccountUse,
) -> tuple[ClaimAnswer, bool, Sequence[Row]]:
    """Claim available work. Returns whether to look again for other work, and the claimed rows."""
    tx, engine, agent = work.tx, work.engine, use.agent
    claimer = claimer._replace(agent=agent)
    lanes, ready, gates, free = await eligible(tx, engine, request, claimer, claim_filter, spare=use.has_spare(tx.now))
    most = choice.most(use, min(free, request.most - len(before.assignments)), tx.now)
    if most <= 0:
        return before._replace(at_capacity=True), False, ()
    allocator = await open_allocator(tx, engine, request.workspace, agent)
    if allocator.day_is_spent:
        return before._replace(closed=(_day_is_spent(tx.now),)), False, ()
    picker = (OldestFirst if request.fifo else Picker)(tx, engine, request, use, claim_filter, gates, allocator)
    chosen = await allocator.lock(tx, await picker.pick(lanes, most))
    admitted = await admit(work, gates, lanes, chosen)
    handed = await assign(work, request, agent, allocator, admitted, claim_filter, use=use)
    assignments = [*before.assignments, *handed]
    held = await allocator.hold_back(tx)
    again = len(admitted.rows) < most and (len(admitted.rows) < len(chosen) or bool(held))
    busy = not picker.misfits and any(lane.id < TARGETED for lane in lanes)
    contended = not chosen and (busy or bool(held))  # there may be more behind the tasks held back
    closed, slow = tuple(gates.closed), gates.slow_down_sec
    misfits = before.no_fit + picker.misfits
    answer = ClaimAnswer(assignments, closed, misfits, ready=ready, contended=contended, slow_down_sec=slow)
    sooner = None if picker.sooner_at is None else picker.sooner_at - tx.now
    return answer._replace(unfinished=picker.unfinished, look_again_sec=sooner), again, admitted.rows


MAX_SLOTS = 2**31
"""The budget of an agent without a limit."""

MAX_POLLS = 4
"""A breaker or limit that refused tasks has now closed its gate: the claim looks for other work."""


def _day_is_spent(now: float) -> Closed:
    return Closed("budget", WHOLE, day_begins(now) + 86_400)


class Claimer(NamedTuple):
    """A locked agent, with lanes that have work, closed gates, limits, and the number of its claims."""

    agent: Row
    found: Sequence[Row]


async def lock_claimer(tx: Tx, engine: Engine, request: ClaimRequest) -> Claimer:
    """The agent's row, locked before its limits are counted; registered from the request if that is allowed."""
    found = await find_claimer(tx, request.workspace, request.agent_id, request.runtime_id)
    if not found:
        settings = (await engine.settings_cache.load(tx, request.workspace)).settings()
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
    engine.remember_agent(request.workspace, agent)
    return Claimer(agent, found)


async def find_claimer(tx: Tx, workspace: str, agent_id: str, runtime_id: str | None = None) -> Sequence[Row]:
    """One row per finding, each with the agent; read again if another claim of the agent was faster."""
    names = {"bound": TARGETED, "workspace": workspace, "agent": agent_id, "runtime": runtime_id}
    found = await tx.all("lock_claimer", **names)
    if found and not found[0]["exact"]:
        return await tx.all("lock_claimer", **names)
    return found


async def register(tx: Tx, engine: Engine, request: ClaimRequest) -> None:
    settings = (await engine.settings_cache.load(tx, request.workspace)).settings()
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
    """A claim is a sign of life, even if it finds no work; it is written only if it matters, and not every time."""
    settings = (await engine.settings_cache.load(tx, request.workspace)).settings()
    if request.runtime_id is None or settings.runtime_offline_sec is None:
        return
    before = await tx.one("read_runtime", workspace=request.workspace, id=request.runtime_id)
    if before is None or before["status"] != "active" or tx.now - before["seen_at"] >= NOTE_EVERY_SEC:
        await tx.run("touch_runtime", workspace=request.workspace, id=request.runtime_id, now=tx.now, heartbeat_at=None)


async def _wants(tx: Tx, request: ClaimRequest, agent: Row) -> ClaimFilter:
    """The agent's registered abilities, narrowed by the claim's filters; an unregistered agent is described by the
    claim.
    """
    if not agent["announced"]:
        await _restate(tx, request, agent)
    return filter_for(request, agent)


def filter_for(request: ClaimRequest, agent: Row) -> ClaimFilter:
    if not agent["announced"]:
        types = None if request.types is None else frozenset(request.types)
        return ClaimFilter(request.agent_id, types, frozenset(request.capabilities), frozenset(request.models))

    def of(column: str, asked: Sequence[str]) -> frozenset[str]:
        return frozenset(asked) | frozenset(msgspec.json.decode(agent[column] or "[]"))

    types = None if agent["types"] is None else frozenset(msgspec.json.decode(agent["types"]))
    if request.types is not None:
        types = frozenset(request.types) if types is None else types & frozenset(request.types)
    return ClaimFilter(request.agent_id, types, of("capabilities", request.capabilities), of("models", request.models))


async def _restate(tx: Tx, request: ClaimRequest, agent: Row) -> None:
    """Update what other claims read about the agent."""
    if not is_as_stated(request, agent):
        names = dict(zip(("types", "capabilities", "models"), stated(request), strict=True))
        await tx.run("restate_agent", workspace=request.workspace, id=request.agent_id, **names)


def is_as_stated(request: ClaimRequest, agent: Row) -> bool:
    """Whether the claim describes its agent as its row does; a registered agent is described by its row."""
    return agent["announced"] or stated(request) == (agent["types"], agent["capabilities"], agent["models"])


def stated(request: ClaimRequest) -> tuple[str | None, str, str]:
    types = None if request.types is None else _names(request.types)
    return types, _names(request.capabilities), _names(request.models)


class _Eligible(NamedTuple):
    """The work open to an agent: its lanes and all lanes with work, the gates that apply to it, its free slots."""

    lanes: list[Lane]
    ready: frozenset[int]
    gates: Gates
    free: int


async def eligible(
    tx: Tx, engine: Engine, request: ClaimRequest, claimer: Claimer, claim_filter: ClaimFilter, *, spare: bool = True
) -> _Eligible:
    agent, rows = claimer
    slots = agent["max_concurrent_tasks"]
    resolver = await engine.settings_cache.load(tx, request.workspace)
    gates = Gates((row for row in rows if row["scope"] is not None), resolver, agent, claim_filter, tx.now)
    gates.has_spare = spare
    ready = [row["lane"] for row in rows if row["lane"] is not None]
    lanes = await engine.lanes.lanes(tx, ready)
    through = [lane for lane in lanes if lane.key.workspace == request.workspace and gates.open_for(lane)]
    held = sum(row["held"] or 0 for row in rows)
    return _Eligible(through, frozenset(ready), gates, MAX_SLOTS if slots is None else slots + request.ahead - held)


async def assign(
    work: UnitOfWork,
    request: ClaimRequest,
    agent: Row,
    allocator: BudgetAllocator,
    admitted: Admitted,
    claim_filter: ClaimFilter | None = None,
    *,
    use: AccountUse | None = None,
) -> list[Assignment]:
    """Write the claims and their events."""
    chosen, tx, engine, caller = admitted.rows, work.tx, work.engine, work.caller
    for closed in await allocator.pay(tx, chosen):
        emit_budget_closed(work, closed)
    if not chosen:
        await work.save_events()
        return []
    grants = Grants(await engine.settings_cache.load(tx, request.workspace), request, agent, allocator, tx.now)
    context = await read.before_claim(tx, chosen)
    edges = {id_: extra.dependencies for id_, extra in context.items()}
    found = await inputs.resolve(tx, request.workspace, chosen, edges)
    assignments = []
    for row in chosen:
        extra = context.get(row["id"], read.NOTHING)
        if row["id"] in admitted.models:
            extra = extra._replace(model=admitted.models[row["id"]])
        if use is not None and use.several:
            extra = extra._replace(account=use.agent["account"])
        assignments.append(grants.of(row).add(row, extra, found.get(row["id"])))
    for grant in grants.all:
        await _write(tx, caller, grant)
    granted = sum(grant.terms.granted * len(grant.rows) for grant in grants.all)
    await _record(tx, request, agent, granted, chosen[-1]["type"], claim_filter)
    for grant in grants.all:
        emit_claimed(work, caller, grant)
    await work.save_events()
    return assignments


class Grants:
    """Computes the terms of a claim, once for all tasks with the same settings."""

    def __init__(
        self, resolver: Resolver, request: ClaimRequest, agent: Row, allocator: BudgetAllocator, now: float
    ) -> None:
        self._resolver = resolver
        self._purse = allocator
        self._request = request
        self._agent = agent
        self._now = now
        self._alike: dict[Any, Grant] = {}
        self.all: list[Grant] = []

    def of(self, row: Row) -> Grant:
        if row["own_settings"]:
            return self._make(row, own_settings(msgspec.json.decode(row["body"])))
        grants = self._purse.grants
        key = row["type"], row["timeout_sec"], grants.get(row["id"]) if grants else None
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = self._make(row, None)
        return found

    def _make(self, row: Row, own: dict[str, Any] | None) -> Grant:
        settings = self._resolver.settings(row["type"], own)
        running = self._request.start or settings.auto_start
        limits = _limits(settings, row, self._agent, running=running, now=self._now)
        status = State.RUNNING if running else State.CLAIMED
        granted = self._purse.grants.get(row["id"])
        started = self._now if running else None
        terms = _Terms(status.value, started, limits, granted or 0, granted is not None)
        self.all.append(Grant(self._request, terms, settings, self._now))
        return self.all[-1]


async def _write(tx: Tx, caller: Caller, grant: Grant) -> None:
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


def _limits(settings: Settings, row: Row, agent: Row, *, running: bool, now: float) -> lease_policy.Deadlines:
    if running:
        return lease_policy.at_start(settings, timeout_sec=row["timeout_sec"], claimed_at=now, now=now)
    ttl = agent["claim_ttl_sec"]
    return lease_policy.at_claim(settings, timeout_sec=row["timeout_sec"], claim_ttl_sec=ttl, now=now)


def emit_claimed(work: UnitOfWork, caller: Caller, grant: Grant) -> None:
    agent_id, messages = grant.request.agent_id, dict(grant.request.messages)
    path = TO_CLAIMED if grant.terms.started_at is None else TO_RUNNING
    actor, request_id = f"agent:{agent_id}", caller.request_id
    now = grant.now
    lone: list[BatchItem] = []
    for row in grant.rows:
        id_, fence = row["id"], row["fence"] + 1
        data = None
        if messages or row["lost_agent_id"] is not None:
            data = _taken_from(row, agent_id, messages.get(id_))
        if data is None and row["dag_id"] == id_:
            waited = now - row["created_at"] if row["version"] == 1 else None  # ready ever since it was submitted
            lone.append((id_, fence, waited))
        else:
            work.add_event(
                NewEvent(
                    grant.now, row["workspace"], "claimed", actor, id_, row["dag_id"], path, request_id, fence,
                    data=data,
                )
            )  # fmt: skip
    if lone:
        type_ = grant.rows[0]["type"]
        work.add_batch(Alike(grant.request.workspace, "claimed", path, actor, request_id, type=type_), lone)


def _taken_from(row: Row, agent_id: str, message_id: str | None) -> dict[str, str] | None:
    """The holder it was taken over from, and the stream entry it came with; most claims have neither."""
    if row["lost_agent_id"] is None:
        return None if message_id is None else {"message_id": message_id}
    message_id = message_id or ids.token(ids.show_task(row["id"]), row["fence"] + 1)
    return {"original_consumer": row["lost_agent_id"], "new_consumer": agent_id, "message_id": message_id}


NOTE_EVERY_SEC = 1.0
"""A claim is a sign of life of its runtime; writing it once a second is often enough."""


async def _record(
    tx: Tx, request: ClaimRequest, agent: Row, granted: int, type_: str, claim_filter: ClaimFilter | None = None
) -> None:
    """Written each time: a concurrent claim of this agent detects by it that it had to wait for us."""
    names = {"workspace": request.workspace, "id": request.agent_id}
    asked, asked_at = (None, None) if claim_filter is None else (claim_filter.text(), tx.now)
    await tx.run("note_claim", **names, now=tx.now, granted=granted, type=type_, asked=asked, asked_at=asked_at)
    seen_at = agent["runtime_seen_at"]
    if request.runtime_id is not None and (seen_at is None or tx.now - seen_at >= NOTE_EVERY_SEC):
        await tx.run("touch_runtime", workspace=request.workspace, id=request.runtime_id, now=tx.now, heartbeat_at=None)
