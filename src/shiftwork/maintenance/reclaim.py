"""Reclaims tasks whose claims were never started, went silent or ran too long."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from shiftwork.batches.policy import provider_of
from shiftwork.engine import finish, lease_policy
from shiftwork.engine.decide import after_loss
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.rows import TaskRow, load
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import reasons
from shiftwork.model.states import State
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx
from shiftwork.validation import verdicts

BATCH = 500
SLICE_SEC = 5.0
"""After this long, findings are written and the rest is left to the next batch, so that the call does not time out."""

Counts = dict[str, int]


class LeaseFindings(NamedTuple):
    """The findings about due claims, before any is locked."""

    expired: dict[str, Row]
    alive: list[tuple[str, float | None]]
    resting: int


async def reclaim(tx: Tx, engine: Engine) -> Counts:
    """End overdue claims. Silence ends none while agents could not be heard (`model/heartbeat_grace.py`).

    A deferred claim is not changed: other processes may have heard what this one could not.
    """
    work = UnitOfWork(tx, engine, Caller("maintenance:reclaim"))
    judged = await _assess_due(work)
    if judged.alive:
        await tx.run("move_checks", items=judged.alive)
    counts = {"looked": len(judged.alive), "expired": await _expire_all(work, judged.expired)}
    counts["looked"] += counts["expired"]
    if judged.resting:
        counts["resting"] = judged.resting
    return counts if any(counts.values()) else {}


async def _assess_due(work: UnitOfWork) -> LeaseFindings:
    """Examine due claims until there is a batch of work or no claim is left."""
    judged = LeaseFindings({}, [], 0)
    looked_at = 0
    while True:
        due = await work.tx.all("due_claims", now=work.now, skip=looked_at, count=BATCH)
        work.engine.store.stall_detector.check()
        judged = await _assess(work, due, judged)
        if len(due) < BATCH or len(judged.expired) + len(judged.alive) >= BATCH:
            return judged
        looked_at += len(due)


async def _assess(work: UnitOfWork, due: Iterable[Row], judged: LeaseFindings) -> LeaseFindings:
    rows = {row["id"]: load(row) for row in due}
    settings = await work.settings(list(rows.values()))
    resting = judged.resting
    for row in due:
        verdict = _verdict(rows[row["id"]], row, settings[row["id"]], work)
        if isinstance(verdict, lease_policy.Alive):
            judged.alive.append((row["id"], verdict.check_at))
        elif verdict is None:
            resting += 1
        else:
            judged.expired[row["id"]] = row
    return judged._replace(resting=resting)


def _verdict(
    row: TaskRow, beat: Row, settings: Settings, work: UnitOfWork
) -> lease_policy.Expired | lease_policy.Alive | None:
    """Whether a claim is over; None if its agent is silent but that proves nothing yet."""
    if provider_of(row.agent_id) and row.status == State.RUNNING and row.lease_until is not None:
        in_time = work.now < row.lease_until  # a provider's batch is silent until it ends
        return lease_policy.Alive(row.lease_until) if in_time else lease_policy.Expired(reasons.HEARTBEAT_TIMEOUT)
    if beat["agent_status"] == "failed" and row.status != State.VALIDATING:
        return lease_policy.Expired(reasons.HEARTBEAT_TIMEOUT)
    facts, stalls = _facts(row, beat), work.engine.store.stall_detector
    verdict = lease_policy.inspect(facts, settings, work.now)
    if isinstance(verdict, lease_policy.Alive):
        return verdict
    span = settings.heartbeat_timeout_sec or settings.runtime_offline_sec or 90
    if facts.run_until is not None and facts.run_until + stalls.missed(facts.claimed_at) <= work.now:
        return verdict  # it ran too long, heartbeats or not
    if verdict.reason == reasons.TIMEOUT or stalls.rests_until(lease_policy.last_sign(facts), span) > work.now:
        return None
    return verdict


async def _expire_all(work: UnitOfWork, found: dict[str, Row]) -> int:
    began, expired = time.perf_counter(), 0
    silent: Counter[tuple[str, str]] = Counter()
    for row in await work.lock(found) if found else []:
        if row.id not in found or not row.held or row.lease_check_at is None or row.lease_check_at > work.now:
            continue
        settings = await work.settings_of(row)
        verdict = _verdict(row, found[row.id], settings, work)
        if not isinstance(verdict, lease_policy.Expired):
            continue
        if time.perf_counter() - began > SLICE_SEC:
            break
        expired += 1
        if verdict.reason in {reasons.HEARTBEAT_TIMEOUT, reasons.RUNTIME_OFFLINE}:
            silent[row.workspace, row.agent_id or ""] += 1
        await _expire(work, row, settings, verdict.reason)
    for (workspace, agent), count in sorted(silent.items()):
        work.emit_for(workspace, "agent_silent", data={"agent": agent, "tasks": count})
        work.alert(workspace, "agent_silent", agent=agent, count=count)
    await work.save()
    return expired


def _facts(row: TaskRow, beat: Row) -> lease_policy.ClaimFacts:
    own = [at for at in (row.heartbeat_at, beat["runtime_heartbeat_at"]) if at is not None]
    return lease_policy.ClaimFacts(
        status=row.status,  # type: ignore[arg-type]  # a held row has one of the three
        claimed_at=row.claimed_at or 0.0,
        started_at=row.started_at,
        heartbeat_at=max(own, default=None),
        runtime_seen_at=max(beat["seen_at"] or 0.0, row.claimed_at or 0.0),
        ack_by=row.ack_by,
        run_until=row.run_until,
        lease_until=row.lease_until,
    )


async def _expire(work: UnitOfWork, row: TaskRow, settings: Settings, reason: str) -> None:
    if row.status == State.VALIDATING:
        await verdicts.miss(work, row, settings)
        return
    facts = await finish.facts_of(work, row)
    decision = after_loss(facts, settings, reason, work.engine.random.random())
    error = f"Timeout after {row.timeout_sec:g}s" if reason == "timeout" and row.timeout_sec else None
    note = f"{reason}: agent {row.agent_id}, last heard {_ago(row, work.now)}"
    await finish.end_failed(work, row, decision, error=error, note=note, lost=True)


def _ago(row: TaskRow, now: float) -> str:
    last_seen = max(at for at in (row.claimed_at, row.started_at, row.heartbeat_at) if at is not None)
    return f"{now - last_seen:.0f} s ago"
