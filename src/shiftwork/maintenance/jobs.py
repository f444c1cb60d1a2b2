"""The maintenance jobs of the queue, each one transaction over a bounded batch, except the rebuild of indexes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import msgspec

from shiftwork.agents import liveness as agent_health
from shiftwork.control.operations import erase
from shiftwork.dead_letters.operations import ReviewDecision, review
from shiftwork.engine import dependents, rank, read
from shiftwork.engine.engine import NOWHERE, Caller, Engine
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.submit import recheck_dependencies
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.fairness import serial_keys
from shiftwork.limits import capacity
from shiftwork.limits.capacity_policy import is_counted
from shiftwork.maintenance.model import BATCH, Counts, next_workspaces
from shiftwork.model import ids
from shiftwork.model.states import State
from shiftwork.settings.model import MONTH_SEC
from shiftwork.store.store import Tx
from shiftwork.triggers.firing import KEEP_FIRINGS_SEC
from shiftwork.waits import approval_guard
from shiftwork.waits.open_waits import KEEP_SIGNALS_SEC

log = logging.getLogger("shiftwork.maintenance")


async def health(tx: Tx, engine: Engine) -> Counts:
    """Mark silent agents failed; `reclaim` then ends their claims."""
    failed = await agent_health.find_failed(tx, engine, BATCH)
    if failed is None:
        return NOWHERE
    return {"failed": failed} if failed else {}


async def promote(tx: Tx, engine: Engine) -> Counts:
    """Bring retries whose delay has passed back into their lanes."""
    due = await tx.all("due_retries", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = UnitOfWork(tx, engine, Caller("maintenance:promote"))
    promoted = 0
    for row in await work.lock(row["id"] for row in due):
        if row.status != State.RETRYING or row.available_at is None or row.available_at > tx.now:
            continue
        promoted += 1
        row.available_at = None
        if row.waiting:
            work.emit(row, "promoted", work.move(row, "block"))
            await recheck_dependencies(work, row)
            continue
        path, event_data = await approval_guard.unblock_or_guard(work, row, await work.settings_of(row), "promote")
        work.emit(row, "promoted", path, data=event_data)
    await work.save()
    return {"promoted": promoted}


async def rerank(tx: Tx, engine: Engine) -> Counts:
    """Re-rank the few ready tasks whose place changes other than by ageing: deadlines, escalation, starvation."""
    due = await tx.all("due_reranks", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = UnitOfWork(tx, engine, Caller("maintenance:rerank"))
    rows = [row for row in await work.lock(row["id"] for row in due) if row.status == State.READY]
    settings = await work.settings(rows)
    for row in rows:
        since, updated_at = row.rerank_at, row.updated_at
        work.mark_ready(row, settings[row.id])
        work.touch(row)
        row.updated_at = updated_at  # not a change by a caller; the wait for a better agent counts from here
        if since is not None and rank.is_starved(row.rank_facts(), settings[row.id], since, tx.now):
            waited = round(tx.now - row.aged_from)
            work.emit(row, "starved", data={"seconds": waited})
            work.alert(row.workspace, "starved", row.id, seconds=waited)
    await work.save()
    return {"reranked": len(rows)}


async def missing_dependencies(tx: Tx, engine: Engine) -> Counts:
    """Mark tasks whose dependency was not submitted in time, or announce that it is slow; they continue once it
    completes.
    """
    due = await tx.all("due_blocks", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = UnitOfWork(tx, engine, Caller("maintenance:dependencies"))
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
        work.emit(row, "blocked", reason=row.blocked_reason, data={"missing": names})
        work.alert(row.workspace, row.blocked_reason, row.id, missing=", ".join(names))
    announced = await _announce_slow(work, slow)
    await work.save()
    return {"blocked": blocked, "slow": announced}


async def _announce_slow(work: UnitOfWork, rows: list[TaskRow]) -> int:
    """Announce which known dependencies take this long, and in which state they are."""
    waits: dict[str, dict[str, str]] = {}
    found = await work.tx.all("slow_dependencies", items=[(row.root_id,) for row in rows]) if rows else ()
    for edge in found:
        waits.setdefault(edge["dependent"], {})[ids.show_task(edge["id"])] = edge["status"]
    for row in rows:
        if states := waits.get(row.root_id):
            work.emit(row, "dependency_slow", data={"dependencies": states})
            named = ", ".join(f"{task} ({status})" for task, status in states.items())
            work.alert(row.workspace, "dependency_slow", row.id, dependencies=named)
    return len(waits)


async def stale(tx: Tx, engine: Engine) -> Counts:
    """Look for tasks with a wrong count of open dependencies. There should be none; any found is repaired."""
    await _tally_strays(tx, engine)
    counts = {"serial_keys": keys} if (keys := await serial_keys.repair(tx)) else {}
    found = await tx.all("stranded", count=BATCH)
    if not found:
        return counts
    work = UnitOfWork(tx, engine, Caller("maintenance:stale"))
    repaired = 0
    for row in await work.lock(row["id"] for row in found):
        open_ = await dependents.count_waiting(work, row.root_id)
        if row.status != State.PENDING or row.waiting == open_:
            continue
        log.error(
            "task %s counted %d open dependencies but has %d; repaired", ids.show_task(row.id), row.waiting, open_
        )
        repaired += 1
        row.waiting = open_
        work.touch(row)
        if not open_:
            await dependents.unblock(work, row)
    await work.save()
    return {**counts, "repaired": repaired}


async def _tally_strays(tx: Tx, engine: Engine) -> None:
    """Include tasks that another process submitted before it knew of the limit."""
    names = [row["name"] for row in await tx.all("used_workspaces")]
    for name, resolver in (await engine.settings_cache.load_many(tx, names)).items():
        if is_counted(resolver.settings()):
            await capacity.begin_counting(tx, engine, name)


async def displaced(tx: Tx, engine: Engine) -> Counts:
    """Bring back displaced tasks while there is room."""
    resubmitted = 0
    for workspace in await tx.all("displaced_workspaces"):
        found = await capacity.places(tx, engine, workspace["name"], BATCH - resubmitted)
        verdict = ReviewDecision("retry", "there is room again")
        outcomes = await review(tx, engine, Caller("maintenance:displaced"), found, verdict) if found else []
        resubmitted += sum(1 for outcome in outcomes if outcome.error is None)
    return {"resubmitted": resubmitted} if resubmitted else {}


async def retention(tx: Tx, engine: Engine) -> Counts:
    """Archive tasks that ended long ago; remove old archived tasks, events, requests and alerts."""
    counts: Counter[str] = Counter()
    names = [row["name"] for row in await tx.all("list_workspaces")]
    settings = {name: found.settings() for name, found in (await engine.settings_cache.load_many(tx, names)).items()}
    for name in next_workspaces(names, engine.archived_to):
        engine.archived_to = name
        after_sec, keep_sec = settings[name].archive_after_sec, settings[name].keep_archived_sec
        if after_sec is not None:
            before = tx.now - after_sec
            found = {"workspace": name, "before": before, "newest": ids.first_at(before + 1), "count": BATCH}
            due = await tx.all("archivable", **found)
            counts["archived"] += await _archive(tx, engine, name, [row["id"] for row in due])
            counts["alerts"] += len(await tx.all("delete_alerts", workspace=name, before=before, count=BATCH))
        if keep_sec is not None:
            counts["pruned"] += await _prune(tx, name, tx.now - keep_sec)
    counts["events"] = await _prune_events(tx, [found.keep_events_sec for found in settings.values()])
    counts["replies"] = len(await tx.all("delete_replies", now=tx.now, count=BATCH))
    counts["signals"] = len(await tx.all("delete_signals", before=tx.now - KEEP_SIGNALS_SEC, count=BATCH))
    counts["firings"] = len(await tx.all("delete_firings", before=tx.now - KEEP_FIRINGS_SEC, count=BATCH))
    return {name: count for name, count in counts.items() if count}


async def _prune(tx: Tx, workspace: str, before: float) -> int:
    """Remove archived tasks with their names and keys, tombstones, and DAGs without tasks; counts tasks."""
    found = {"workspace": workspace, "before": before, "count": BATCH}
    archived = await tx.all("prune_archive", **found)
    gone = [(row["id"],) for row in archived]
    if keys := [(workspace, row["key"], row["id"]) for row in archived if row["key"] is not None]:
        await tx.run("drop_keys", items=keys)
    if gone:
        await tx.run("delete_names", items=gone)
        await tx.run("delete_aliases", items=gone)
    total = len(gone) + len(await tx.all("prune_tombstones", **found))
    if total:
        await tx.run("add_pruned", workspace=workspace, tasks=total)
    await tx.all("prune_dags", **found)
    return total


async def _prune_events(tx: Tx, kept: Sequence[float | None]) -> int:
    """Cut the log, which holds the events of all workspaces in order, at the point that none of them needs any more."""
    if None in kept:
        return 0
    before = tx.now - max((keep_sec for keep_sec in kept if keep_sec is not None), default=MONTH_SEC)
    return len(await tx.all("prune_events", before=before, count=10 * BATCH))


async def _archive(tx: Tx, engine: Engine, workspace: str, uuids: list[str]) -> int:
    written = []
    for task, uuid in zip(await read.tasks(tx, engine, workspace, uuids), uuids, strict=True):
        kept = msgspec.structs.replace(task, archived=True)
        text = msgspec.json.encode(kept).decode()
        written.append((uuid, workspace, task.external_id, task.status, task.type, tx.now, text))
    await tx.insert("insert_archive", written)
    await erase(tx, uuids)
    return len(written)


REBUILD_PERIOD_SEC = 600.0


async def elect_index_rebuild(tx: Tx, engine: Engine) -> dict[str, int]:  # noqa: ARG001  # every job gets both
    """Elect one process per period."""
    return {}


async def rebuild_indexes(engine: Engine) -> dict[str, int]:
    """Rebuild indexes that have outgrown their tables, on PostgreSQL.

    Runs outside a transaction: an index is rebuilt while in use. SQLite's indexes need no rebuild.
    """
    if engine.store.one_writer:
        return {}
    from shiftwork.store.postgres_indexes import rebuild_grown  # noqa: PLC0415  # needs the driver, an extra

    rebuilt = await rebuild_grown(engine.store)
    return {"rebuilt": len(rebuilt)} if rebuilt else {}
