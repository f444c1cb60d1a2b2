"""Implements the operations on agents and runtimes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shiftwork.accounts import choice
from shiftwork.agents import presence
from shiftwork.agents.api import Agents, Registration, Runtimes
from shiftwork.agents.model import Agent, AgentStatus, NewAgent, Runtime, RuntimeHeartbeat
from shiftwork.budgets.policy import reached
from shiftwork.engine import finish, leases
from shiftwork.engine.decide import after_loss
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.lanes import wake_all
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import check, ids, reasons
from shiftwork.model.errors import InputError, NotFound
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.states import SLOT_STATES, State
from shiftwork.model.task import dollars, micros
from shiftwork.operation.local import Call, implements, reading, transaction
from shiftwork.store.store import Row, Tx, record

BATCH = 500


@transaction(Registration.register)
async def register(tx: Tx, engine: Engine, caller: Caller, workspace: str, agent: NewAgent) -> Agent:
    new = check.fit(agent, "agent")
    if new.restarted:
        await _recover(tx, engine, caller, workspace, new.id)
    settings = (await engine.settings_cache.load(tx, workspace)).settings()
    accounts = sorted({*new.accounts, *([new.account] if new.account else [])})
    if len(accounts) > 1 and new.provider is None:
        hint = "Name the provider of the accounts."
        raise InputError("several accounts need a provider", where="agent.provider", hint=hint)
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
        account=accounts[0] if len(accounts) == 1 else None,
        accounts=_json(accounts) if len(accounts) > 1 else None,
        max_concurrent_tasks=limit,
        budget=budget,
        told=reached(budget, before["spent"] if before else 0),
        poll_interval_sec=new.poll_interval_sec or settings.poll_interval_sec,
        claim_ttl_sec=new.claim_ttl_sec,
        isolation_group=new.isolation_group,
        now=tx.now,
    )
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "agent_registered", data={"agent": new.id, "again": before is not None})
    await work.save_events()
    return await _read_agent(tx, engine, workspace, new.id)


def _json(names: Sequence[str]) -> str:
    return msgspec.json.encode(sorted(set(names))).decode()


@reading(Agents.list)
async def list_agents(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[Agent]:
    interval = (await engine.settings_cache.load(tx, workspace)).settings().heartbeat_interval_sec
    return [_agent(row, interval) for row in await tx.all("list_agents", workspace=workspace)]


@reading(Agents.get)
async def get_agent(tx: Tx, engine: Engine, caller: Caller, workspace: str, agent_id: str) -> Agent:
    return await _read_agent(tx, engine, workspace, agent_id)


async def _read_agent(tx: Tx, engine: Engine, workspace: str, agent_id: str) -> Agent:
    row = await tx.one("show_agent", workspace=workspace, id=agent_id)
    if row is None:
        raise NotFound(f"there is no agent {agent_id!r}", agent_id=agent_id)
    return _agent(row, (await engine.settings_cache.load(tx, workspace)).settings().heartbeat_interval_sec)


def _agent(row: Row, interval: float) -> Agent:
    budget = row["budget"]
    return record(
        Agent,
        row,
        workspace_id=row["workspace"],
        types=None if row["types"] is None else msgspec.json.decode(row["types"]),
        capabilities=msgspec.json.decode(row["capabilities"]),
        models_available=msgspec.json.decode(row["models"]),
        accounts=[name for name in choice.accounts_of(row) if name is not None],
        current_tasks=int(row["current_tasks"]),
        idle=row["current_tasks"] == 0,
        budget_remaining_usd=None if budget is None else dollars(budget - row["spent"] - row["granted"]),
        spent_usd=dollars(row["spent"]),
        granted_usd=dollars(row["granted"]),
        heartbeat_interval_sec=interval,
    )


@transaction(Agents.heartbeat)
async def heartbeat(tx: Tx, engine: Engine, caller: Caller, workspace: str, agent_id: str) -> Agent:
    """If runtimes are watched, an agent's heartbeat counts for everything its runtime holds."""
    await tx.run("beat_agent", workspace=workspace, id=agent_id, now=tx.now)
    if (await engine.settings_cache.load(tx, workspace)).settings().heartbeat.scope == "runtime":
        for held in await tx.all("runtimes_of_agent", workspace=workspace, agent=agent_id):
            await tx.one("touch_runtime", workspace=workspace, id=held["runtime_id"], now=tx.now, heartbeat_at=tx.now)
    return await _read_agent(tx, engine, workspace, agent_id)


@transaction(Agents.deregister)
async def deregister(tx: Tx, engine: Engine, caller: Caller, workspace: str, agent_id: str) -> None:
    work = UnitOfWork(tx, engine, caller)
    await _set_status(work, workspace, agent_id, "offline")
    await work.save_events()


@transaction(Agents.update)
async def update(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    agent_id: str,
    *,
    status: AgentStatus | None = None,
    budget_remaining_usd: float | msgspec.UnsetType | None = msgspec.UNSET,
) -> Agent:
    work = UnitOfWork(tx, engine, caller)
    if status is not None:
        await _set_status(work, workspace, agent_id, status)
    if budget_remaining_usd is not msgspec.UNSET:
        await _set_budget(work, workspace, agent_id, budget_remaining_usd)
    await work.save_events()
    return await _read_agent(tx, engine, workspace, agent_id)


async def _set_status(work: UnitOfWork, workspace: str, agent_id: str, status: AgentStatus) -> None:
    changed = await work.tx.one("set_agent_status", workspace=workspace, id=agent_id, status=status)
    if changed is None:
        raise NotFound(f"there is no agent {agent_id!r}", where="agent")
    work.emit_for(workspace, "agent_status", data={"agent": agent_id, "status": status})
    if status == "failed":
        work.alert(workspace, "agent_failed", agent=agent_id)


async def _set_budget(work: UnitOfWork, workspace: str, agent_id: str, remaining: float | None) -> None:
    row = await work.tx.one("lock_agent", workspace=workspace, id=agent_id)
    if row is None:
        raise NotFound(f"there is no agent {agent_id!r}", where="agent")
    budget = None if remaining is None else micros(remaining) + row["spent"] + row["granted"]
    reached_part = reached(budget, row["spent"])
    await work.tx.run("set_agent_budget", workspace=workspace, id=agent_id, budget=budget, told=reached_part)
    await wake_all(work.tx, workspace)
    work.emit_for(workspace, "agent_budget", data={"agent": agent_id, "remaining_usd": remaining})


@transaction(Runtimes.recover)
async def recover(tx: Tx, engine: Engine, caller: Caller, workspace: str, runtime_id: str) -> list[Outcome]:
    work = UnitOfWork(tx, engine, caller)
    found = await tx.all("held_by_runtime", runtime=runtime_id, workspace=workspace)
    locked = await work.lock(row["id"] for row in found)
    await tx.run("touch_runtime", workspace=workspace, id=runtime_id, now=tx.now, heartbeat_at=None)  # after the tasks
    rows = [row for row in locked if row.status in SLOT_STATES and row.runtime_id == runtime_id]
    for row in rows:
        await _orphan(work, row)
    await work.save()
    return [Outcome(ids.show_task(row.id), row.status) for row in rows]


async def _recover(tx: Tx, engine: Engine, caller: Caller, workspace: str, agent_id: str) -> None:
    """Recover an agent that has restarted: its earlier claims are failed, requeued or kept."""
    work = UnitOfWork(tx, engine, caller)
    found = await tx.all("held_claims", agent=agent_id, workspace=workspace)
    for row in await work.lock(row["id"] for row in found):
        if row.status in SLOT_STATES and row.agent_id == agent_id:
            await _orphan(work, row)
    await work.save()


async def _orphan(work: UnitOfWork, row: TaskRow) -> None:
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


transaction(Runtimes.report_gone)(presence.report_gone)


@reading(Runtimes.list)
async def list_runtimes(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[Runtime]:
    rows = await tx.all("list_runtimes", workspace=workspace)
    settings = (await engine.settings_cache.load(tx, workspace)).settings()
    silence = settings.runtime_offline_sec or settings.heartbeat_timeout_sec
    return [
        Runtime(
            id=row["id"],
            status="offline" if silence is not None and tx.now - row["seen_at"] >= silence else row["status"],
            last_heartbeat=row["heartbeat_at"],
            last_seen=row["seen_at"],
            held=int(row["held"]),
        )
        for row in rows
    ]


@implements(Runtimes.heartbeat)
async def runtime_heartbeat(call: Call, runtime_id: str, holding: Sequence[str | Token] = ()) -> RuntimeHeartbeat:
    found = await call.tokens(holding)
    tokens = [token for token in found if isinstance(token, Token)]
    answer = await call.run(leases.runtime_heartbeat, call.workspace, runtime_id, tokens)
    unknown = [str(given) for given, token in zip(holding, found, strict=True) if isinstance(token, NotFound)]
    return msgspec.structs.replace(answer, lost=[*answer.lost, *unknown])


@transaction(Agents.rebalance)
async def rebalance(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[Outcome]:
    work = UnitOfWork(tx, engine, caller)
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
