"""Takes back claims that were never started, went silent or ran too long."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from shiftwork.core import reasons
from shiftwork.core.settings import Settings
from shiftwork.core.states import State
from shiftwork.policy import lease
from shiftwork.policy.decide import after_loss
from shiftwork.queue import finish
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.outputs import verdicts
from shiftwork.queue.rows import TaskRow, load
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx

BATCH = 500
SLICE_SEC = 5.0
"""After so long what was found is written and the rest is left to the next batch: a call must not run out of time."""

Counts = dict[str, int]


class Judged(NamedTuple):
    """What was found out about due claims, before any is locked."""

    expired: dict[str, Row]
    alive: list[tuple[str, float | None]]
    resting: int


async def reclaim(tx: Tx, engine: Engine) -> Counts:
    """End claims whose time is over. Silence ends none while agents could not be heard (`policy/silence.py`).

    A claim that rests is not touched: other processes may have heard what this one could not.
    """
    work = Work(tx, engine, Caller("duty:reclaim"))
    judged = await _judge_due(work)
    if judged.alive:
        await tx.run("move_checks", items=judged.alive)
    counts = {"looked": len(judged.alive), "expired": await _expire_all(work, judged.expired)}
    counts["looked"] += counts["expired"]
    if judged.resting:
        counts["resting"] = judged.resting
    return counts if any(counts.values()) else {}


async def _judge_due(work: Work) -> Judged:
    """Look at due claims until there is a batch of work or no claim is left."""
    judged = Judged({}, [], 0)
    looked_at = 0
    while True:
        due = await work.tx.all("due_claims", now=work.now, skip=looked_at, count=BATCH)
        work.engine.store.hearing.check()
        judged = await _judge(work, due, judged)
        if len(due) < BATCH or len(judged.expired) + len(judged.alive) >= BATCH:
            return judged
        looked_at += len(due)


async def _judge(work: Work, due: Iterable[Row], judged: Judged) -> Judged:
    rows = {row["id"]: load(row) for row in due}
    settings = await work.settings(list(rows.values()))
    resting = judged.resting
    for row in due:
        verdict = _verdict(rows[row["id"]], row, settings[row["id"]], work)
        if isinstance(verdict, lease.Alive):
            judged.alive.append((row["id"], verdict.check_at))
        elif verdict is None:
            resting += 1
        else:
            judged.expired[row["id"]] = row
    return judged._replace(resting=resting)


def _verdict(row: TaskRow, beat: Row, settings: Settings, work: Work) -> lease.Expired | lease.Alive | None:
    """Whether a claim is over; None where its agent is silent, and that proves nothing yet."""
    if beat["agent_status"] == "failed" and row.status != State.VALIDATING:
        return lease.Expired(reasons.HEARTBEAT_TIMEOUT)
    facts, hearing = _facts(row, beat), work.engine.store.hearing
    verdict = lease.inspect(facts, settings, work.now)
    if isinstance(verdict, lease.Alive):
        return verdict
    span = settings.heartbeat_timeout_sec or settings.runtime_offline_sec or 90
    if facts.run_until is not None and facts.run_until + hearing.missed(facts.claimed_at) <= work.now:
        return verdict  # it ran too long, whatever was heard of it
    if verdict.reason == reasons.TIMEOUT or hearing.rests_until(lease.last_sign(facts), span) > work.now:
        return None
    return verdict


async def _expire_all(work: Work, found: dict[str, Row]) -> int:
    began, expired = time.perf_counter(), 0
    silent: Counter[tuple[str, str]] = Counter()
    for row in await work.lock(found) if found else []:
        if row.id not in found or not row.held or row.lease_check_at is None or row.lease_check_at > work.now:
            continue
        settings = await work.settings_of(row)
        verdict = _verdict(row, found[row.id], settings, work)
        if not isinstance(verdict, lease.Expired):
            continue
        if time.perf_counter() - began > SLICE_SEC:
            break
        expired += 1
        if verdict.reason in {reasons.HEARTBEAT_TIMEOUT, reasons.RUNTIME_OFFLINE}:
            silent[row.workspace, row.agent_id or ""] += 1
        await _expire(work, row, settings, verdict.reason)
    for (workspace, agent), count in sorted(silent.items()):
        work.tell_of(workspace, "agent_silent", data={"agent": agent, "tasks": count})
        work.alert(workspace, "agent_silent", agent=agent, count=count)
    await work.save()
    return expired


def _facts(row: TaskRow, beat: Row) -> lease.ClaimFacts:
    own = [at for at in (row.heartbeat_at, beat["runtime_heartbeat_at"]) if at is not None]
    return lease.ClaimFacts(
        status=row.status,  # type: ignore[arg-type]  # a held row has one of the three
        claimed_at=row.claimed_at or 0.0,
        started_at=row.started_at,
        heartbeat_at=max(own, default=None),
        runtime_seen_at=max(beat["seen_at"] or 0.0, row.claimed_at or 0.0),
        ack_by=row.ack_by,
        run_until=row.run_until,
        lease_until=row.lease_until,
    )


async def _expire(work: Work, row: TaskRow, settings: Settings, reason: str) -> None:
    if row.status == State.VALIDATING:
        await verdicts.miss(work, row, settings)
        return
    facts = await finish.facts_of(work, row)
    decision = after_loss(facts, settings, reason, work.engine.random.random())
    error = f"Timeout after {row.timeout_sec:g}s" if reason == "timeout" and row.timeout_sec else None
    note = f"{reason}: agent {row.agent_id}, last heard {_ago(row, work.now)}"
    await finish.end_failed(work, row, decision, error=error, note=note, lost=True)


def _ago(row: TaskRow, now: float) -> str:
    heard = max(at for at in (row.claimed_at, row.started_at, row.heartbeat_at) if at is not None)
    return f"{now - heard:.0f} s ago"
