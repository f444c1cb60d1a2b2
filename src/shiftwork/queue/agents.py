"""Agents and the runtimes that host them: register, drain, go offline, come back after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from shiftwork.core import ids, reasons
from shiftwork.core.errors import NotFound
from shiftwork.core.states import IN_HAND, State
from shiftwork.core.task import Dollars, Fields, Name, dollars, micros
from shiftwork.policy.budget import reached
from shiftwork.policy.decide import after_loss
from shiftwork.queue import check, finish
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.fence import Outcome
from shiftwork.queue.lanes import wake_all
from shiftwork.queue.rows import TaskRow
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx

BATCH = 500
Status = Literal["active", "draining", "offline", "failed"]


class NewAgent(Fields):
    """An agent that announces itself. What is not said has no limit, but for `max_concurrent_tasks`."""

    id: Name
    type: Name | None = None
    types: list[Name] | None = None
    capabilities: list[Name] = []
    models_available: list[Name] = []
    provider: Name | None = None
    """Whose models it uses, and on which account: those who share them share their limits."""
    account: Name | None = None
    max_concurrent_tasks: Annotated[int, Meta(ge=1, le=100000)] | msgspec.UnsetType | None = msgspec.UNSET
    budget_remaining_usd: Dollars | None = None
    poll_interval_sec: Annotated[float, Meta(gt=0)] | None = None
    claim_ttl_sec: Annotated[float, Meta(gt=0)] | None = None
    isolation_group: Name | None = None
    restarted: bool = False
    """Its program has begun anew and knows nothing of what it held: that is recovered."""


class Agent(msgspec.Struct, frozen=True):
    """An agent as a reader sees it."""

    id: str
    workspace_id: str
    type: str | None
    types: list[str] | None
    capabilities: list[str]
    models_available: list[str]
    provider: str | None
    account: str | None
    max_concurrent_tasks: int | None
    current_tasks: int
    status: str
    idle: bool
    budget_remaining_usd: float | None
    spent_usd: float
    granted_usd: float
    poll_interval_sec: float
    claim_ttl_sec: float | None
    heartbeat_interval_sec: float
    isolation_group: str | None
    registered_at: float
    last_heartbeat: float


async def register(tx: Tx, engine: Engine, caller: Caller, workspace: str, new: NewAgent) -> Agent:
    """Announce an agent, or what has changed about it. Registering again makes it active."""
    if new.restarted:
        await _recover(tx, engine, caller, workspace, new.id)
    settings = (await engine.book.of(tx, workspace)).settings()
    before = await tx.one("lock_agent", workspace=workspace, id=new.id)
    limit = settings.max_concurrent_tasks if new.max_concurrent_tasks is msgspec.UNSET else new.max_concurrent_tasks
    spent = before["spent"] + before["granted"] if before else 0
    budget = None if new.budget_remaining_usd is None else micros(new.budget_remaining_usd) + spent
    await tx.run(
        "upsert_agent",
        workspace=workspace,
        id=new.id,
        type=new.type,
        types=None if new.types is None else _json(new.types),
        capabilities=_json(new.capabilities),
        models=_json(new.models_available),
        provider=new.provider,
        account=new.account,
        max_concurrent_tasks=limit,
        budget=budget,
        told=reached(budget, before["spent"] if before else 0),
        poll_interval_sec=new.poll_interval_sec or settings.poll_interval_sec,
        claim_ttl_sec=new.claim_ttl_sec,
        isolation_group=new.isolation_group,
        now=tx.now,
    )
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "agent_registered", data={"agent": new.id, "again": before is not None})
    await work.save_events()
    return (await read_agents(tx, engine, workspace, new.id))[0]


def _json(names: Sequence[str]) -> str:
    return msgspec.json.encode(sorted(set(names))).decode()


async def read_agents(tx: Tx, engine: Engine, workspace: str, only: str | None = None) -> list[Agent]:
    settings = (await engine.book.of(tx, workspace)).settings()
    rows = await tx.all("list_agents", workspace=workspace)
    return [_agent(row, settings.heartbeat_interval_sec) for row in rows if only in {None, row["id"]}]


def _agent(row: Row, interval: float) -> Agent:
    budget = row["budget"]
    return Agent(
        id=row["id"],
        workspace_id=row["workspace"],
        type=row["type"],
        types=None if row["types"] is None else msgspec.json.decode(row["types"]),
        capabilities=msgspec.json.decode(row["capabilities"]),
        models_available=msgspec.json.decode(row["models"]),
        provider=row["provider"],
        account=row["account"],
        max_concurrent_tasks=row["max_concurrent_tasks"],
        current_tasks=int(row["current_tasks"]),
        status=row["status"],
        idle=row["current_tasks"] == 0,
        budget_remaining_usd=None if budget is None else dollars(budget - row["spent"] - row["granted"]),
        spent_usd=dollars(row["spent"]),
        granted_usd=dollars(row["granted"]),
        poll_interval_sec=row["poll_interval_sec"],
        claim_ttl_sec=row["claim_ttl_sec"],
        heartbeat_interval_sec=interval,
        isolation_group=row["isolation_group"],
        registered_at=row["registered_at"],
        last_heartbeat=row["last_heartbeat"],
    )


async def set_status(tx: Tx, engine: Engine, caller: Caller, workspace: str, agent_id: str, status: str) -> None:
    """Draining and offline agents finish what they hold and get nothing new."""
    check.one_of(status, get_args(Status), "status")
    changed = await tx.one("set_agent_status", workspace=workspace, id=agent_id, status=status)
    if changed is None:
        raise NotFound(f"there is no agent {agent_id!r}", where="agent")
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "agent_status", data={"agent": agent_id, "status": status})
    if status == "failed":
        work.alert(workspace, "agent_failed", agent=agent_id)
    await work.save_events()


async def set_budget(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, agent_id: str, remaining: float | None
) -> None:
    row = await tx.one("lock_agent", workspace=workspace, id=agent_id)
    if row is None:
        raise NotFound(f"there is no agent {agent_id!r}", where="agent")
    budget = None if remaining is None else micros(remaining) + row["spent"] + row["granted"]
    told = reached(budget, row["spent"])
    await tx.run("set_agent_budget", workspace=workspace, id=agent_id, budget=budget, told=told)
    await wake_all(tx, workspace)
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "agent_budget", data={"agent": agent_id, "remaining_usd": remaining})
    await work.save_events()


async def orphans(tx: Tx, engine: Engine, caller: Caller, workspace: str, runtime_id: str) -> list[Outcome]:
    """A runtime has restarted: what it held before is failed, requeued or kept, as the workspace's `recover` says."""
    work = Work(tx, engine, caller)
    found = await tx.all("held_by_runtime", runtime=runtime_id, workspace=workspace)
    locked = await work.lock(row["id"] for row in found)
    await tx.run("see_runtime", workspace=workspace, id=runtime_id, now=tx.now, heartbeat_at=None)  # after the tasks
    rows = [row for row in locked if row.status in IN_HAND and row.runtime_id == runtime_id]
    for row in rows:
        await _orphan(work, row)
    await work.save()
    return [Outcome(ids.show_task(row.id), row.status) for row in rows]


async def _recover(tx: Tx, engine: Engine, caller: Caller, workspace: str, agent_id: str) -> None:
    """An agent has restarted: what it held before is failed, requeued or kept."""
    work = Work(tx, engine, caller)
    found = await tx.all("held_claims", agent=agent_id, workspace=workspace)
    for row in await work.lock(row["id"] for row in found):
        if row.status in IN_HAND and row.agent_id == agent_id:
            await _orphan(work, row)
    await work.save()


async def _orphan(work: Work, row: TaskRow) -> None:
    settings = await work.settings_of(row)
    note = f"runtime {row.runtime_id} restarted"
    if settings.recover == "keep":
        return
    facts = await finish.facts_of(work, row)
    decision = after_loss(
        facts,
        msgspec.structs.replace(settings, on_stale=settings.recover),
        reasons.RUNTIME_OFFLINE,
        work.engine.random.random(),
    )
    await finish.end_failed(work, row, decision, note=note, lost=True)


async def runtime_gone(tx: Tx, engine: Engine, caller: Caller, workspace: str, runtime_id: str) -> list[Outcome]:
    """The process is known to have died: what it held ends as if it had fallen silent, and its agents are failed."""
    work = Work(tx, engine, caller)
    found = await tx.all("held_by_runtime", runtime=runtime_id, workspace=workspace)
    locked = await work.lock(row["id"] for row in found)
    rows = [row for row in locked if row.status in IN_HAND and row.runtime_id == runtime_id]
    hosted = {row.agent_id for row in rows if row.agent_id} | await _announced(tx, workspace, runtime_id)
    await finish.lose_claims(work, rows, runtime_id)
    if rows:
        work.tell_of(workspace, "runtime_gone", data={"runtime": runtime_id, "tasks": len(rows)})
        work.alert(workspace, "runtime_gone", runtime=runtime_id, count=len(rows))
    work.lose_agents(workspace, hosted)
    await work.save()
    # Runtimes are the last to be locked, as in a claim and a heartbeat.
    await tx.run("set_runtime_status", workspace=workspace, id=runtime_id, status="offline")
    return [Outcome(ids.show_task(row.id), row.status) for row in rows]


async def _announced(tx: Tx, workspace: str, runtime_id: str) -> set[str]:
    """The agent that the process named when it announced itself; so one that held nothing is found, too."""
    runtime = await tx.one("read_runtime", workspace=workspace, id=runtime_id)
    presence = msgspec.json.decode(runtime["presence"]) if runtime and runtime["presence"] else {}
    return {presence["agent"]} if presence.get("agent") else set()


async def read_runtimes(tx: Tx, engine: Engine, workspace: str) -> list[dict[str, Any]]:
    """One that has been silent for as long as the workspace waits is offline, whether or not somebody has said so."""
    rows = await tx.all("list_runtimes", workspace=workspace)
    settings = (await engine.book.of(tx, workspace)).settings()
    silence = settings.runtime_offline_sec or settings.heartbeat_timeout_sec
    return [
        {
            "id": r["id"],
            "status": "offline" if silence is not None and tx.now - r["seen_at"] >= silence else r["status"],
            "last_heartbeat": r["heartbeat_at"],
            "last_seen": r["seen_at"],
            "held": int(r["held"]),
        }
        for r in rows
    ]


async def rebalance(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[Outcome]:
    """Withdraw what loaded agents have claimed and not started, so that idle ones can take it."""
    work = Work(tx, engine, caller)
    agents = await tx.all("list_agents", workspace=workspace)
    idle = sum(1 for agent in agents if agent["status"] == "active" and agent["current_tasks"] == 0)
    held = {agent["id"]: int(agent["current_tasks"]) for agent in agents}
    taken: list[str] = []
    for claim in await tx.all("claims_not_started", workspace=workspace, count=BATCH):
        if len(taken) < idle and held.get(claim["agent_id"], 0) > 1:
            held[claim["agent_id"]] -= 1
            taken.append(claim["id"])
    rows = [row for row in await work.lock(taken) if row.status == State.CLAIMED]
    for row in rows:
        await finish.release_row(work, row, "rebalanced")
    await work.save()
    return [Outcome(ids.show_task(row.id), row.status) for row in rows]
