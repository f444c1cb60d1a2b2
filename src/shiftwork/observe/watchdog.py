"""Checks the queue's health in a few bounded queries and raises alerts."""

from __future__ import annotations

from typing import Any, NamedTuple

from shiftwork.agents import liveness
from shiftwork.engine.engine import Caller, Engine, log
from shiftwork.engine.new_dags import DagFields
from shiftwork.engine.prepare import prepare
from shiftwork.engine.submit import Origin, lanes_of, submit
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits import capacity
from shiftwork.model.errors import InputError
from shiftwork.model.states import CLAIMED_STATES, WAITING
from shiftwork.observe import maintenance_health, policy
from shiftwork.observe.alert_conditions import Finding, Kind, compare
from shiftwork.observe.metrics import ended_by
from shiftwork.observe.policy import AttemptCounts
from shiftwork.settings.model import Friction, Settings
from shiftwork.store.store import Tx

MAX_COUNT = 100
"""The most findings of one kind per check; the rest is found later, when some of these have ended."""

FEW_DEAD = 10_000
"""Fewer dead rows raise no alert, however few live ones there are."""

FAR_BEHIND = 1_000_000
"""Transactions a replication slot may lag before it holds the clean-up back."""


class Watched(NamedTuple):
    """One workspace and its settings."""

    work: UnitOfWork
    workspace: str
    settings: Settings


async def check_workspace_conditions(tx: Tx, engine: Engine, workspace: str) -> int:
    """Check one workspace; returns how many conditions began."""
    work = UnitOfWork(tx, engine, Caller("maintenance:alerts"))
    watched = Watched(work, workspace, (await engine.settings_cache.load(tx, workspace)).settings())
    found: dict[Kind, list[Finding]] = {
        "pool": await _pool(watched),
        "queue_depth": await _depth(watched),
        "failure_rate": await _failure_rates(watched),
        "task_stuck": await _stuck(watched),
        "backlog_age": await _backlog(watched),
    }
    raised = 0
    for kind, findings in found.items():
        raised += len(await compare(work, workspace, kind, findings))
    raised += await _frictions(watched)
    await tx.run("resolve_agent_alerts", workspace=workspace, now=tx.now, actor=work.caller.actor)
    await work.save_events()
    return raised


async def check_capacity(tx: Tx, engine: Engine, workspace: str) -> None:
    """Check how full the queue is. This blocks submissions if capacity is limited, so it comes last."""
    work = UnitOfWork(tx, engine, Caller("maintenance:alerts"))
    await capacity.check_room(work, workspace, (await engine.settings_cache.load(tx, workspace)).settings())
    await work.save_events()


async def check_store(tx: Tx, engine: Engine, workspace: str) -> int:
    """Check what the database reports about itself; alerts go to one workspace."""
    work = UnitOfWork(tx, engine, Caller("maintenance:alerts"))
    watched = Watched(work, workspace, (await engine.settings_cache.load(tx, workspace)).settings())
    raised = len(await compare(work, workspace, "dead_rows", await _dead_rows(watched)))
    raised += len(await compare(work, workspace, "old_transaction", await _old_transactions(watched)))
    raised += len(await compare(work, workspace, "maintenance", await _late_jobs(watched)))
    await work.save_events()
    return raised


async def _pool(watched: Watched) -> list[Finding]:
    minimum = watched.settings.min_agents
    live = await liveness.live(watched.work.tx, watched.workspace, watched.settings) if minimum else 0
    if live >= minimum:
        return []
    return [Finding("agents", "pool_below_minimum", {"live": live, "minimum": minimum})]


async def _depth(watched: Watched) -> list[Finding]:
    most = watched.settings.alerts.queue_depth
    if most is None:
        return []
    row = await watched.work.tx.one("tally_more_than", workspace=watched.workspace, count=most + 1)
    return [Finding("queue", "queue_depth", {"limit": most})] if row and row["total"] > most else []


async def _failure_rates(watched: Watched) -> list[Finding]:
    alerts, tx = watched.settings.alerts, watched.work.tx
    if alerts.failure_rate is None:
        return []
    since = tx.now - alerts.failure_window_sec
    least = max(1, int(alerts.failure_rate * alerts.failure_count))
    some = await tx.one("failed_since", workspace=watched.workspace, since=since, count=least)
    if some is None or some["total"] < least:
        return []
    rates = await ended_by(tx, watched.workspace, "type", since)
    return [
        Finding(type_, "failure_rate", ended._asdict())
        for type_, ended in sorted(rates.items())
        if policy.is_too_high(ended, alerts.failure_rate, alerts.failure_count)
    ]


async def _stuck(watched: Watched) -> list[Finding]:
    share, now = watched.settings.alerts.stuck_at, watched.work.now
    if share is None:
        return []
    rows = await watched.work.tx.all("stuck_tasks", workspace=watched.workspace, share=share, now=now, count=MAX_COUNT)
    return [
        Finding(
            row["id"],
            "task_stuck",
            {"agent": row["agent_id"], "seconds": round(now - row["started_at"])},
            row["id"],
        )
        for row in rows
    ]


async def _backlog(watched: Watched) -> list[Finding]:
    oldest, now = watched.settings.alerts.backlog_age_sec, watched.work.now
    if oldest is None:
        return []
    row = await watched.work.tx.one("oldest_head", workspace=watched.workspace, before=now - oldest)
    if row is None:
        return []
    return [Finding("queue", "backlog_age", {"seconds": round(now - row["updated_at"])}, row["id"])]


async def _dead_rows(watched: Watched) -> list[Finding]:
    share = watched.settings.alerts.dead_rows
    row = await watched.work.tx.one("dead_rows") if share is not None else None
    if row is None or share is None or row["dead"] < max(FEW_DEAD, share * row["live"]):
        return []
    return [Finding("tasks", "dead_rows", {"dead": row["dead"], "live": row["live"]})]


async def _old_transactions(watched: Watched) -> list[Finding]:
    seconds = watched.settings.alerts.transaction_sec
    if seconds is None:
        return []
    rows = await watched.work.tx.all("old_transactions", seconds=seconds, transactions=FAR_BEHIND, count=MAX_COUNT)
    return [Finding(row["what"], "old_transaction", dict(row)) for row in rows]


async def _late_jobs(watched: Watched) -> list[Finding]:
    """Jobs that fail or take too long; not this one, which is running."""
    rows = maintenance_health.jobs_of(await watched.work.tx.all("list_jobs"))
    late = {row["name"]: maintenance_health.late_sec(row, watched.work.now) for row in rows if row["name"] != "alerts"}
    return [Finding(name, "maintenance_late", {"seconds": round(sec)}) for name, sec in sorted(late.items()) if sec]


async def _frictions(watched: Watched) -> int:
    """Create a task about a type that keeps failing in the same way, once while that lasts."""
    rule = watched.settings.friction
    found = await _alike(watched, rule) if rule is not None else []
    began = await compare(watched.work, watched.workspace, "friction", found)
    if rule is not None:
        for finding in began:
            await _create(watched, rule, finding)
    return len(began)


async def _alike(watched: Watched, rule: Friction) -> list[Finding]:
    tx, workspace = watched.work.tx, watched.workspace
    since = tx.now - rule.window_sec
    groups = await tx.all("failed_alike", workspace=workspace, since=since, least=rule.min_count, count=MAX_COUNT)
    rates = await ended_by(tx, workspace, "type", since) if groups else {}
    found = []
    for group in groups:
        ended = rates.get(group["type"], AttemptCounts(0, 0))
        # A task about failures that itself fails must not create another.
        if group["type"] != rule.create.type and policy.is_too_high(ended, rule.failure_rate, rule.min_count):
            facts: dict[str, Any] = {name: group[name] for name in ("type", "signature", "first_at", "last_at")}
            facts |= {"failed": int(group["failed"]), "agents": int(group["agents"]), "rate": round(ended.rate, 3)}
            found.append(Finding(group["signature"], "friction", facts))
    return found


async def _create(watched: Watched, rule: Friction, finding: Finding) -> None:
    tx, engine, workspace = watched.work.tx, watched.work.engine, watched.workspace
    about = {name: value for name, value in finding.facts.items() if name != "signature"}
    new = policy.task_about(rule.create, finding.subject, about)
    try:
        prepared = prepare(new, workspace, await engine.settings_cache.load(tx, workspace), tx.now, "friction.create")
    except InputError as error:  # nothing is written yet, and the alert stays
        log.warning("no task could be created about a friction: %s", error)
        return
    await _free_key(tx, workspace, prepared.key)
    lanes = await engine.lanes.intern_in(tx, lanes_of([prepared]))
    caller = Caller("friction", workspace=workspace)
    await submit(tx, engine, caller, workspace, [prepared], lanes, DagFields(), Origin(admitted=True))


async def _free_key(tx: Tx, workspace: str, key: str | None) -> None:
    """Free the key of an ended task about the same friction."""
    for row in await tx.all("read_keys", items=[(workspace, key)]):
        if row["status"] not in WAITING | CLAIMED_STATES:
            await tx.run("drop_keys", items=[(workspace, key, row["task_id"])])
