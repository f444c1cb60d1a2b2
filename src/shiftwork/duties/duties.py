"""The duties of the queue, each one transaction over a bounded batch."""

from __future__ import annotations

import logging
from collections import Counter

import msgspec

from shiftwork.core import ids, reasons
from shiftwork.core.settings import Settings
from shiftwork.core.states import State
from shiftwork.policy import lease, rank
from shiftwork.policy.decide import after_loss
from shiftwork.queue import consequences, finish, read
from shiftwork.queue import health as agent_health
from shiftwork.queue.control import erase
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.fairness import serials
from shiftwork.queue.observation import watch
from shiftwork.queue.outputs import verdicts
from shiftwork.queue.protection import capacity
from shiftwork.queue.review import Verdict, review
from shiftwork.queue.rows import TaskRow
from shiftwork.queue.submit import inherit_open_fate
from shiftwork.queue.triggers.firing import KEEP_FIRINGS_SEC
from shiftwork.queue.waits import guard
from shiftwork.queue.waits.waits import KEEP_SIGNALS_SEC, count_waiting
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx

log = logging.getLogger("shiftwork.duties")
BATCH = 500
Counts = dict[str, int]


async def reclaim(tx: Tx, engine: Engine) -> Counts:
    """Take back claims that were never started, went silent or ran too long."""
    due = await tx.all("due_claims", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = Work(tx, engine, Caller("duty:reclaim"))
    beats = {row["id"]: row for row in due}
    checks, counts = [], {"looked": len(due), "expired": 0}
    silent: Counter[tuple[str, str]] = Counter()
    for row in await work.lock(beats):
        if row.id not in beats or not row.held or row.lease_check_at is None or row.lease_check_at > tx.now:
            continue
        settings = await work.settings_of(row)
        verdict = lease.inspect(_facts(row, beats[row.id]), settings, tx.now)
        if beats[row.id]["agent_status"] == "failed" and row.status != State.VALIDATING:
            verdict = lease.Expired(reasons.HEARTBEAT_TIMEOUT)
        if isinstance(verdict, lease.Alive):
            checks.append((row.id, verdict.check_at))
        elif (rest := _rests_until(engine, settings)) > tx.now and verdict.reason != "timeout":
            checks.append((row.id, rest))
        else:
            counts["expired"] += 1
            if verdict.reason in {reasons.HEARTBEAT_TIMEOUT, reasons.RUNTIME_OFFLINE}:
                silent[row.workspace, row.agent_id or ""] += 1
            await _expire(work, row, settings, verdict.reason)
    if checks:
        await tx.run("move_checks", items=checks)
    for (workspace, agent), count in sorted(silent.items()):
        work.tell_of(workspace, "agent_silent", data={"agent": agent, "tasks": count})
        work.alert(workspace, "agent_silent", agent=agent, count=count)
    await work.save()
    return counts


def _facts(row: TaskRow, beat: Row) -> lease.ClaimFacts:
    own = [at for at in (row.heartbeat_at, beat["heartbeat_at"]) if at is not None]
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


def _rests_until(engine: Engine, settings: Settings) -> float:
    """After the store was away or a clock stepped, silence means nothing until everybody could have beaten once."""
    return engine.store.unsettled_since() + (settings.heartbeat_timeout_sec or settings.runtime_offline_sec or 90)


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


async def health(tx: Tx, engine: Engine) -> Counts:
    """Mark the agents failed that went silent; `reclaim` gives what they hold to others."""
    failed = await agent_health.find_failed(tx, engine, BATCH)
    return {"failed": failed} if failed else {}


async def promote(tx: Tx, engine: Engine) -> Counts:
    """Bring retries whose delay has passed back into their lanes."""
    due = await tx.all("due_retries", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = Work(tx, engine, Caller("duty:promote"))
    promoted = 0
    for row in await work.lock(row["id"] for row in due):
        if row.status != State.RETRYING or row.available_at is None or row.available_at > tx.now:
            continue
        promoted += 1
        row.available_at = None
        if row.waiting:
            work.tell(row, "promoted", work.move(row, "block"))
            await inherit_open_fate(work, row)
            continue
        path, told = await guard.let_through(work, row, await work.settings_of(row), "promote")
        work.tell(row, "promoted", path, data=told)
    await work.save()
    return {"promoted": promoted}


async def rerank(tx: Tx, engine: Engine) -> Counts:
    """Move the few ready tasks whose place changes by more than ageing: deadlines, escalation, starvation."""
    due = await tx.all("due_reranks", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = Work(tx, engine, Caller("duty:rerank"))
    rows = [row for row in await work.lock(row["id"] for row in due) if row.status == State.READY]
    settings = await work.settings(rows)
    for row in rows:
        since, updated_at = row.rerank_at, row.updated_at
        work.arrive(row, settings[row.id])
        work.touch(row)
        row.updated_at = updated_at  # no caller changed it; the wait for a better agent counts from here
        if since is not None and rank.starves(row.rank_facts(), settings[row.id], since, tx.now):
            waited = round(tx.now - row.created_at)
            work.tell(row, "starved", data={"seconds": waited})
            work.alert(row.workspace, "starved", row.id, seconds=waited)
    await work.save()
    return {"reranked": len(rows)}


async def missing_dependencies(tx: Tx, engine: Engine) -> Counts:
    """Mark tasks whose dependency has not come in time, or announce that it is slow; they go on once it completes."""
    due = await tx.all("due_blocks", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = Work(tx, engine, Caller("duty:dependencies"))
    rows = await work.lock(row["id"] for row in due)
    missing: dict[str, list[str]] = {}
    for edge in await tx.all("missing_dependencies", items=[(row.root_id,) for row in rows]):
        missing.setdefault(edge["dependent"], []).append(edge["name"])
    blocked, slow = 0, list[TaskRow]()
    for row in rows:
        if row.block_check_at is None or row.block_check_at > tx.now:
            continue
        row.block_check_at = None
        work.touch(row)
        applies_to = (await work.settings_of(row)).dependency_wait_applies_to
        if row.status == State.PENDING and applies_to == "notice":
            slow.append(row)
        if row.status != State.PENDING or not (applies_to == "all" or row.root_id in missing):
            continue
        blocked += 1
        row.blocked_reason = "missing_dependency" if row.root_id in missing else "dependency_wait"
        names = [ids.shown(name) for name in missing.get(row.root_id, [])]
        work.tell(row, "blocked", reason=row.blocked_reason, data={"missing": names})
        work.alert(row.workspace, row.blocked_reason, row.id, missing=", ".join(names))
    announced = await _announce_slow(work, slow)
    await work.save()
    return {"blocked": blocked, "slow": announced}


async def _announce_slow(work: Work, rows: list[TaskRow]) -> int:
    """A notice to the supervisor: which known dependencies take so long, and in which state they are."""
    waits: dict[str, dict[str, str]] = {}
    found = await work.tx.all("slow_dependencies", items=[(row.root_id,) for row in rows]) if rows else ()
    for edge in found:
        waits.setdefault(edge["dependent"], {})[ids.show_task(edge["id"])] = edge["status"]
    for row in rows:
        if states := waits.get(row.root_id):
            work.tell(row, "dependency_slow", data={"dependencies": states})
            named = ", ".join(f"{task} ({status})" for task, status in states.items())
            work.alert(row.workspace, "dependency_slow", row.id, dependencies=named)
    return len(waits)


async def stale(tx: Tx, engine: Engine) -> Counts:
    """Look for tasks whose count of open dependencies is wrong. There must be none; one that is found is mended."""
    await _tally_strays(tx, engine)
    counts = {"serial_keys": keys} if (keys := await serials.mend(tx)) else {}
    found = await tx.all("stranded", count=BATCH)
    if not found:
        return counts
    work = Work(tx, engine, Caller("duty:stale"))
    mended = 0
    for row in await work.lock(row["id"] for row in found):
        open_ = await count_waiting(work, row.root_id)
        if row.status != State.PENDING or row.waiting == open_:
            continue
        log.error("task %s counted %d open dependencies and has %d; mended", ids.show_task(row.id), row.waiting, open_)
        mended += 1
        row.waiting = open_
        work.touch(row)
        if not open_:
            await consequences.unblock(work, row)
    await work.save()
    return {**counts, "mended": mended}


async def _tally_strays(tx: Tx, engine: Engine) -> None:
    """Count in what another process submitted before it knew of the limit."""
    for workspace in await tx.all("used_workspaces"):
        await capacity.begin_counting(tx, engine, workspace["name"])


async def displaced(tx: Tx, engine: Engine) -> Counts:
    """Bring back work that had to make room, as far as there is room now."""
    resubmitted = 0
    for workspace in await tx.all("displaced_workspaces"):
        found = await capacity.places(tx, engine, workspace["name"], BATCH - resubmitted)
        verdict = Verdict("retry", "there is room again")
        outcomes = await review(tx, engine, Caller("duty:displaced"), found, verdict) if found else []
        resubmitted += sum(1 for outcome in outcomes if outcome.error is None)
    return {"resubmitted": resubmitted} if resubmitted else {}


async def alerts(tx: Tx, engine: Engine) -> Counts:
    """Look whether each workspace is as it should be, and tell once what is not."""
    raised = await watch.look_at_store(tx, engine, "default")
    workspaces = [row["name"] for row in await tx.all("used_workspaces")]
    for workspace in workspaces:
        raised += await watch.look(tx, engine, workspace)
    for workspace in workspaces:
        await watch.look_at_room(tx, engine, workspace)
    return {"raised": raised} if raised else {}


async def retention(tx: Tx, engine: Engine) -> Counts:
    """Move what ended long ago into the archive, where it stays readable by its id; forget old requests and alerts."""
    archived = alerts = 0
    for workspace in await tx.all("list_workspaces"):
        settings = (await engine.book.of(tx, workspace["name"])).settings()
        if settings.archive_after_sec is None:
            continue
        before = tx.now - settings.archive_after_sec
        due = await tx.all("archivable", workspace=workspace["name"], before=before, count=BATCH)
        archived += await _archive(tx, engine, workspace["name"], [row["id"] for row in due])
        alerts += len(await tx.all("delete_alerts", workspace=workspace["name"], before=before, count=BATCH))
    forgotten = await tx.all("delete_replies", now=tx.now, count=BATCH)
    unheard = await tx.all("delete_signals", before=tx.now - KEEP_SIGNALS_SEC, count=BATCH)
    fired = await tx.all("delete_firings", before=tx.now - KEEP_FIRINGS_SEC, count=BATCH)
    counts = {"archived": archived, "alerts": alerts, "replies": len(forgotten), "signals": len(unheard)}
    counts["firings"] = len(fired)
    return {name: count for name, count in counts.items() if count}


async def _archive(tx: Tx, engine: Engine, workspace: str, uuids: list[str]) -> int:
    written = []
    for task, uuid in zip(await read.tasks(tx, engine, workspace, uuids), uuids, strict=True):
        kept = msgspec.structs.replace(task, archived=True)
        text = msgspec.json.encode(kept).decode()
        written.append((uuid, workspace, task.external_id, task.status, task.type, tx.now, text))
    await tx.insert("insert_archive", written)
    await erase(tx, uuids)
    return len(written)
