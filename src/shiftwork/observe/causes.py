"""Summarizes why work waits, by lane and not by task, so that it costs the same with a million tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.accounts import choice
from shiftwork.batches.policy import provider_of
from shiftwork.budgets.allocator import HOLD as BUDGET
from shiftwork.budgets.allocator import BudgetAllocator
from shiftwork.budgets.policy import day_of
from shiftwork.engine.engine import Engine
from shiftwork.engine.lane_merge import START
from shiftwork.engine.lanes import ClaimFilter, Lane, filter_of
from shiftwork.fairness.preferences import Needs, needs_of
from shiftwork.limits import gates
from shiftwork.model.states import SLOT_STATES, State
from shiftwork.model.task import PUBLISHED
from shiftwork.observe import unavailable_agents
from shiftwork.observe.model import Blocker, Cause, WaitingWork
from shiftwork.observe.policy import TaskCounts
from shiftwork.observe.status import count_tasks
from shiftwork.settings.resolve import Resolver
from shiftwork.store.store import Row, Tx

RECENT_SEC = 2.0
"""Counts of this age suffice: the status that a reader sees was just counted."""

MAX_LANES = 500
"""The most lanes examined, those with most tasks first; tasks in other lanes are counted as not examined."""

SHOWN_TYPES = 10
SILENT_SEC = 120.0
"""An agent not heard from for this long is not claiming."""

DEAD_LETTERS = 200
"""Dead letters for which waiting tasks are counted."""

DAY_SEC = 86_400.0


async def read(tx: Tx, engine: Engine, workspace: str, known: TaskCounts | None) -> tuple[WaitingWork, TaskCounts]:
    """Why work waits now, with the underlying counts."""
    counted = await count_tasks(tx, engine, workspace, known, RECENT_SEC)
    found = _Sum()
    await _add_ready(tx, engine, workspace, counted, found)
    await _add_waiting(tx, engine, workspace, counted, found)
    running = sum(counted.counts.get(state, 0) for state in SLOT_STATES)
    waiting = sum(counted.by_lane.values())
    return WaitingWork(tx.now, counted.at, running, waiting, found.causes()), counted


class _Sum:
    """Sums causes; equal ones are merged."""

    def __init__(self) -> None:
        self._types: dict[tuple[str, str, str, float | None], Counter[str]] = {}

    def add(self, blocker: Blocker, type_: str, tasks: int) -> None:
        key = (blocker.kind, blocker.what, blocker.lifts, blocker.until)
        self._types.setdefault(key, Counter())[type_] += tasks

    def causes(self) -> list[Cause]:
        found = [
            Cause(kind, types.total(), *_words(what, lifts, types.total()), until, _shown(types))
            for (kind, what, lifts, until), types in self._types.items()
        ]
        return sorted(found, key=lambda cause: (-cause.tasks, cause.kind, cause.what))


def _shown(types: Counter[str]) -> list[str]:
    return [name for name, _ in types.most_common(SHOWN_TYPES)]


_OF_ONE = (
    *(("they are ", "it is "), ("they wait ", "it waits "), ("they need ", "it needs "), ("take them", "take it")),
    *(("approve them", "approve it"), ("before them", "before it"), ("left for them", "left for it")),
    *(("their next attempt", "its next attempt"), ("their DAGs or trees", "its DAG or tree")),
    *(("claims them", "claims it"), ("takes them", "takes it"), ("sends them", "sends it")),
)


def _words(what: str, lifts: str, tasks: int) -> tuple[str, str]:
    """Turns sentences about many tasks into the singular."""
    if tasks == 1:
        for many, one in _OF_ONE:
            what, lifts = what.replace(many, one), lifts.replace(many, one)
    return what, lifts


class _Case(NamedTuple):
    """A lane with work, and its first task."""

    lane: Lane
    tasks: int
    head: Row
    needs: Needs


class _Agents:
    """The agents of the workspace, with what each asks for."""

    def __init__(self, rows: Sequence[Row], closed: Sequence[Row]) -> None:
        self._all = [(agent, filter_of(agent)) for agent in rows]
        self._named = {gate["agent_id"] for gate in closed}

    def able(self, case: _Case) -> list[tuple[Row, ClaimFilter]]:
        target = case.lane.key.target_agent_id
        return [each for each in self._all if each[1].fits(case.lane.key.type, case.needs.capabilities, target)]

    def alike_once(self, able: Sequence[tuple[Row, ClaimFilter]]) -> list[tuple[Row, ClaimFilter]]:
        """One agent of each kind, because a gate treats agents with the same keys alike, unless it names one of
        them.
        """
        kinds = {
            (agent["id"] if agent["id"] in self._named else "", agent["provider"], agent["account"], wants.models): each
            for found, wants in able
            for each in [(view, wants) for view in choice.on_each(found)]
            for agent in [each[0]]
        }
        return list(kinds.values())


async def _add_ready(tx: Tx, engine: Engine, workspace: str, counted: TaskCounts, found: _Sum) -> None:
    resolver = await engine.settings_cache.load(tx, workspace)
    ready = Counter({lane: total for (lane, status, hold), total in counted.by_lane.items() if _in_line(status, hold)})
    cases = await _cases(tx, engine, ready)
    closed = await tx.all("read_gates", workspace=workspace)
    agents = _Agents(await tx.all("list_agents", workspace=workspace), closed)
    money = await _money(tx, resolver, workspace, cases)
    for case in cases:
        found.add(_blocker(case, agents, closed, resolver, money, tx.now), case.lane.key.type, case.tasks)
    if unseen := ready.total() - sum(case.tasks for case in cases):
        found.add(_UNSEEN, "", unseen)


_UNSEEN = Blocker("unknown", "they are in lanes that were not examined", "ask about one of them: shiftwork explain")


def _in_line(status: str, hold: str | None) -> bool:
    return status == State.READY and hold is None


async def _cases(tx: Tx, engine: Engine, ready: Counter[int]) -> list[_Case]:
    """The first task of each lane with work. Tasks that left since they were counted do not matter."""
    largest = [lane for lane, _ in ready.most_common(MAX_LANES)]
    lanes = {lane.id: lane for lane in await engine.lanes.lanes(tx, largest)}
    heads = await tx.all("scan_lanes", lanes=[(lane, *START) for lane in largest], count=1) if largest else ()
    mixed = [(head["id"],) for head in heads if lanes[head["lane"]].key.mixed]
    found = await tx.all("read_bodies", items=mixed) if mixed else ()
    bodies: dict[str, Any] = {body["task_id"]: msgspec.json.decode(body["body"]) for body in found}
    cases = []
    for head in heads:
        lane = lanes[head["lane"]]
        cases.append(_Case(lane, ready[lane.id], head, needs_of(head, lane, bodies.get(head["id"]))))
    return cases


async def _money(tx: Tx, resolver: Resolver, workspace: str, cases: Sequence[_Case]) -> BudgetAllocator:
    """The budgets above the first task of each lane, read at once."""
    day = None
    if resolver.settings().budget.daily_usd is not None:
        day = await tx.one("find_budget", workspace=workspace, kind="day", owner=day_of(tx.now))
    allocator = BudgetAllocator(resolver, day=day)
    await allocator.load(tx, [case.head for case in cases])
    return allocator


def _blocker(
    case: _Case, agents: _Agents, closed: Sequence[Row], resolver: Resolver, money: BudgetAllocator, now: float
) -> Blocker:
    """The first cause that keeps the work of a lane."""
    able = agents.able(case)
    if closed:
        shut = gates.reasons(closed, resolver, case.lane, agents.alike_once(able), now)
        if shut:
            return Blocker(*shut[0])
    for level, _ in money.short(case.head):
        return _spent(level.row["kind"], now)
    if provider := provider_of(case.lane.key.target_agent_id):
        what = f"they wait to be sent to {provider} in a batch"
        return Blocker("batch", what, "maintenance runs where the provider's API key is set")
    return _without_taker(case, [agent for agent, _ in able], now)


def _without_taker(case: _Case, able: Sequence[Row], now: float) -> Blocker:
    """Why no agent takes available work."""
    if not able:
        needs = unavailable_agents.needs(case.lane.key.type, case.needs.capabilities, case.lane.key.target_agent_id)
        return Blocker("no_agent", f"no registered agent can take them: they need {needs}", unavailable_agents.REGISTER)
    willing = unavailable_agents.active(able)
    if not willing:
        return Blocker("agents_away", _AWAY, f"set one active: shiftwork agents activate {able[0]['id']}")
    for blocker in unavailable_agents.blockers(willing, case.head["estimated_cost"]):
        return msgspec.structs.replace(blocker, what=blocker.what.replace(" take it ", " take them "))
    if all(agent["last_heartbeat"] < now - SILENT_SEC for agent in willing):
        return Blocker("agents_silent", "no agent that could take them was heard from recently", "start a worker")
    return Blocker("in_line", "agents with free slots can take them", "an agent claims them")


_AWAY = "every agent that could take them is draining, offline or failed"


def _spent(kind: str, now: float) -> Blocker:
    if kind == "day":
        tomorrow = (now // DAY_SEC + 1) * DAY_SEC
        what = "the day's budget has too little left for them"
        return Blocker(BUDGET, what, "raise budget.daily_usd, or wait for the next day (UTC)", tomorrow)
    return Blocker(BUDGET, _NO_MONEY, _RAISE)


_NO_MONEY = "the budgets of their DAGs or trees have too little left"
_RAISE = "raise a ceiling, or running attempts release unused grants"

_HELD: dict[tuple[str, str | None], Blocker] = {
    (State.READY, BUDGET): Blocker(BUDGET, _NO_MONEY, _RAISE),
    (State.READY, "serial"): Blocker("serial", "tasks of the same serial key run before them", "those tasks end"),
    (State.READY, PUBLISHED): Blocker(
        PUBLISHED, "they are offered in a stream to external workers", "one of them takes them"
    ),
    (State.PENDING, None): Blocker("dependency", "they wait for other tasks", "those tasks complete"),
    (State.PENDING, "signal"): Blocker("signal", "they wait for signals", "someone sends them: shiftwork signal"),
    (State.PENDING, "person"): Blocker("person", "they wait for answers of people", "answer: shiftwork approvals"),
    (State.WAITING_APPROVAL, None): Blocker(
        "approval", "a person must approve them first", "approve or reject: shiftwork approvals"
    ),
}


async def _add_waiting(tx: Tx, engine: Engine, workspace: str, counted: TaskCounts, found: _Sum) -> None:
    held: dict[tuple[str, str | None], Counter[int]] = {}
    for (lane, status, hold), total in counted.by_lane.items():
        if not _in_line(status, hold):
            held.setdefault((status, hold), Counter())[lane] += total
    names = {
        lane.id: lane.key.type for lane in await engine.lanes.lanes(tx, sorted({each[0] for each in counted.by_lane}))
    }
    for (status, hold), lanes in held.items():
        blocker = await _held(tx, workspace, status, hold)
        for lane, total in lanes.items():
            found.add(blocker, names.get(lane, ""), total)


async def _held(tx: Tx, workspace: str, status: str, hold: str | None) -> Blocker:
    if status == State.RETRYING:
        due = await tx.one("next_retry", workspace=workspace)
        return Blocker("retry", "they wait for their next attempt", "the time passes", _at(due))
    if hold in {"time", "scheduled"}:
        due = await tx.one("next_wait", workspace=workspace)
        return Blocker(
            hold,
            "they are scheduled for later" if hold == "scheduled" else "they wait for a time",
            "the time comes",
            _at(due),
        )
    if (status, hold) == (State.PENDING, None):
        return await _dependency(tx, workspace)
    return _HELD.get((status, hold)) or Blocker(hold or status, f"held back: {hold or status}", "the gate is opened")


def _at(row: Row | None) -> float | None:
    return None if row is None else row["at"]


async def _dependency(tx: Tx, workspace: str) -> Blocker:
    """Of tasks that wait for others, count those that wait for dead letters."""
    blocker = _HELD[State.PENDING, None]
    row = await tx.one("waiting_for_dead_letters", workspace=workspace, count=DEAD_LETTERS)
    if row is None or not row["total"]:
        return blocker
    what = f"{blocker.what}, {row['total']} of them for dead letters"
    return msgspec.structs.replace(blocker, what=what, lifts="those tasks complete; review dead letters: shiftwork dlq")
