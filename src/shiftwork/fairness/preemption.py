"""Preemption in the store: asks running work to yield if an urgent task waits and no able agent is free."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from shiftwork.engine import rank
from shiftwork.engine.engine import NOWHERE, Caller, Engine
from shiftwork.engine.lanes import Lane, filter_of
from shiftwork.engine.rows import TaskRow, load
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.fairness import policy
from shiftwork.model import ids
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx

if TYPE_CHECKING:
    from shiftwork.model.outcome import Token
    from shiftwork.settings.resolve import Resolver

MOST_URGENT = 20
"""How many urgent tasks of a workspace are considered in one run, the most urgent first."""

MAX_RUNNING = 1000
"""How many running tasks are considered for yielding."""


async def poll_yields(tx: Tx, engine: Engine) -> dict[str, int]:
    """Ask running work to yield, once for each waiting urgent task."""
    known = await engine.settings_cache.load_many(tx, [row["name"] for row in await tx.all("used_workspaces")])
    preempting = {name: resolver for name, resolver in known.items() if resolver.anywhere(preempts)}
    if not preempting:
        return NOWHERE
    work = UnitOfWork(tx, engine, Caller("maintenance:preempt"))
    asked = 0
    for name, resolver in preempting.items():
        await tx.run("drop_yields", workspace=name)
        asked += await _preempt_in(work, name, resolver)
    await work.save_events()
    return {"asked": asked} if asked else {}


def preempts(settings: Settings) -> bool:
    """Whether urgent work may ask running work to yield."""
    return settings.deadline.preempt_running


async def _preempt_in(work: UnitOfWork, workspace: str, resolver: Resolver) -> int:
    below = rank.URGENT_BELOW
    found = await work.tx.all("urgent_waiting", workspace=workspace, below=below, count=MOST_URGENT)
    urgent = [row for row in found if preempts(resolver.settings(row["type"]))]
    if not urgent:
        return 0
    agents = [row for row in await work.tx.all("list_agents", workspace=workspace) if row["status"] == "active"]
    lanes = {lane.id: lane for lane in await work.engine.lanes.lanes(work.tx, [row["lane"] for row in urgent])}
    asked: set[str] = set()
    for row in urgent:
        able = _able(agents, lanes[row["lane"]])
        if able and not any(_is_free(agent) for agent in able):
            victim = await _victim(work, load(row), [agent["id"] for agent in able], asked)
            if victim is not None:
                asked.add(victim.id)
                await _request_yield(work, load(row), victim)
    return len(asked)


def _able(agents: Iterable[Row], lane: Lane) -> list[Row]:
    return [agent for agent in agents if filter_of(agent).may_take(lane)]


def _is_free(agent: Row) -> bool:
    return agent["max_concurrent_tasks"] is None or agent["current_tasks"] < agent["max_concurrent_tasks"]


async def _victim(work: UnitOfWork, urgent: TaskRow, agents: Sequence[str], asked: Collection[str]) -> TaskRow | None:
    items = [(agent,) for agent in agents]
    rows = await work.tx.all("may_yield", items=items, workspace=urgent.workspace, count=MAX_RUNNING)
    held = {row["id"]: load(row) for row in rows if row["id"] not in asked}
    settings = await work.settings([urgent, *held.values()])

    def parts(row: TaskRow) -> rank.Parts:
        return rank.parts(row.rank_facts(), settings[row.id], work.now)

    running = [policy.RunningTask(row.id, parts(row), row.claimed_at or 0.0) for row in held.values()]
    chosen = policy.least_urgent(running, parts(urgent))
    return None if chosen is None else held[chosen.id]


async def _request_yield(work: UnitOfWork, urgent: TaskRow, victim: TaskRow) -> None:
    await work.tx.insert("insert_yields", [(urgent.id, urgent.workspace, victim.id, victim.fence, work.now)])
    work.emit(victim, "yield_asked", fence=victim.fence, data={"for": ids.show_task(urgent.id)})


async def asked(tx: Tx, engine: Engine, workspaces: Iterable[str], claims: Iterable[Token]) -> dict[Token, str]:
    """The claims that were asked to yield, each with the reason. Reads nothing if preemption is off."""
    for workspace in sorted(set(workspaces)):
        if (await engine.settings_cache.load(tx, workspace)).anywhere(preempts):
            break
    else:
        return {}
    by_claim = {(claim.id, claim.fence): claim for claim in claims}
    rows = await tx.all("yields_of", items=sorted(by_claim)) if by_claim else []
    return {by_claim[row["task_id"], row["fence"]]: f"{ids.show_task(row['urgent_id'])} is urgent" for row in rows}
