"""Agent health: an agent that misses too many heartbeats is failed and its claims are returned."""

from __future__ import annotations

from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.lanes import ClaimFilter
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx

NOTE_EVERY_SEC = 10.0
"""A claim that gets no work is a sign of life, which need not be written every time."""


def span_sec(settings: Settings) -> float | None:
    """How long an agent may be silent before it is failed; None if heartbeats do not decide that."""
    if settings.lease.mode != "heartbeat" or settings.heartbeat_timeout_sec is None:
        return None
    if settings.runtime_offline_sec is not None or not settings.health_checks:
        return None
    return settings.health_checks * settings.heartbeat_interval_sec


async def record_ask(tx: Tx, agent: Row, claim_filter: ClaimFilter) -> None:
    """Record the sign of life of an agent whose claim got no work."""
    if agent["asked_at"] is None or tx.now - agent["asked_at"] >= NOTE_EVERY_SEC:
        await tx.run("note_ask", workspace=agent["workspace"], id=agent["id"], now=tx.now, asked=claim_filter.text())


async def find_failed(tx: Tx, engine: Engine, most: int) -> int | None:
    """Mark agents failed that missed too many heartbeats; their claims are then due to be reclaimed.

    None if heartbeats decide about no agent.
    """
    names = [row["name"] for row in await tx.all("agents_workspaces")]
    known = await engine.settings_cache.load_many(tx, names)
    spans = {name: span for name in names if (span := span_sec(known[name].settings())) is not None}
    if not spans:
        return None
    silent_since = [(name, tx.now - span) for name, span in spans.items()]
    silent = await tx.all("silent_agents", items=silent_since, count=most)
    stalls = engine.store.stall_detector
    stalls.check()
    failed = [row for row in silent if stalls.rests_until(row["heard_at"], spans[row["workspace"]]) <= tx.now]
    if failed:
        await _mark(tx, engine, [(row["workspace"], row["id"]) for row in failed])
    return len(failed)


async def _mark(tx: Tx, engine: Engine, agents: list[tuple[str, str]]) -> None:
    await tx.run("check_claims_of", items=agents, now=tx.now)
    work = UnitOfWork(tx, engine, Caller("maintenance:health"))
    for row in await tx.all("fail_agents", items=agents):
        work.emit_for(row["workspace"], "agent_status", data={"agent": row["id"], "status": "failed"})
        work.alert(row["workspace"], "agent_failed", agent=row["id"])
    await work.save_events()


async def live(tx: Tx, workspace: str, settings: Settings) -> int:
    """The number of active agents; if heartbeats decide, only those heard from recently."""
    span = span_sec(settings)
    since = 0.0 if span is None else tx.now - span
    row = await tx.one("live_agents", workspace=workspace, since=since)
    return int(row["total"]) if row else 0
