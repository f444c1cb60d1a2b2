"""Implements the operations on the queue as a whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from shiftwork.artifacts import artifact_rows as artifacts
from shiftwork.control.api import Control
from shiftwork.control.model import BridgeInfo, MaintenanceJob, Purge
from shiftwork.engine import dependents
from shiftwork.engine.change import review_as_cancelled
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.lanes import wake_all
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits import capacity
from shiftwork.limits.model import Backpressure
from shiftwork.model.errors import InputError
from shiftwork.model.states import CLAIMED_STATES, FINAL, STORED
from shiftwork.model.times import Time, epoch
from shiftwork.observe import causes, maintenance_health
from shiftwork.observe.maintenance_health import Resting
from shiftwork.observe.model import WaitingWork
from shiftwork.operation.local import Call, implements, reading, transaction
from shiftwork.search import index
from shiftwork.search.model import LEVELS, Level
from shiftwork.store.store import Row, Tx, record

BATCH = 500
WHOLE = "*"
_FIRST = "00000000-0000-0000-0000-000000000000"


@transaction(Control.pause)
async def pause(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, type: str | None = None, *, reason: str | None = None
) -> None:
    """No claim begun after the answer gets work of this scope."""
    scope = type or WHOLE
    await tx.run(
        "close_gate",
        workspace=workspace,
        scope=scope,
        kind="pause",
        reason=reason,
        now=tx.now,
        actor=caller.actor,
    )
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "queue_paused", data={"scope": scope, "reason": reason})
    await work.save_events()


@transaction(Control.resume)
async def resume(tx: Tx, engine: Engine, caller: Caller, workspace: str, type: str | None = None) -> bool:
    scope = type or WHOLE
    opened = await tx.one("open_gate", workspace=workspace, scope=scope, kind="pause")
    if opened is None:
        return False
    await wake_all(tx, workspace)
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "queue_resumed", data={"scope": scope})
    await work.save_events()
    return True


@implements(Control.purge)
async def purge(
    call: Call,
    *,
    status: Sequence[str] = (),
    type: str | None = None,
    tag: str | None = None,
    level: Level | None = None,
    created_before: Time | None = None,
    held: bool = False,
) -> int:
    before = epoch(created_before)
    wanted = Purge(status=list(status), type=type, tag=tag, level=level, created_before=before, held=held)
    if wanted == Purge():
        raise InputError("a purge needs at least one condition", where="purge")
    unknown = [each for each in status if each not in STORED]
    if unknown:
        raise InputError(f"there is no status {unknown[0]!r}", where="status", hint="One of " + ", ".join(STORED) + ".")
    total, after = 0, None
    while True:
        count, after = await call.run(_purge_page, call.workspace, wanted, after)
        total += count
        if after is None:
            return total


async def _purge_page(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, purge: Purge, after: str | None
) -> tuple[int, str | None]:
    """Run one bounded page of a purge; returns how many were removed, and where to continue."""
    low, high = LEVELS.get(purge.level or "", (None, None))
    statuses = purge.status or ["pending", "waiting_approval", "ready", "retrying"] + (
        sorted(CLAIMED_STATES) if purge.held else []
    )
    settings = (await engine.settings_cache.load(tx, workspace)).settings()
    if settings.purge.mode == "cancel":
        statuses = [status for status in statuses if status not in FINAL]
    found = await tx.all(
        "purgeable",
        workspace=workspace,
        type=purge.type,
        tag=purge.tag,
        before=purge.created_before,
        least=low,
        most=high,
        statuses=msgspec.json.encode(statuses).decode(),
        after=after or _FIRST,
        count=BATCH,
    )
    removed = await purge_tasks(tx, engine, caller, workspace, [row["id"] for row in found], statuses)
    return len(removed), found[-1]["id"] if len(found) == BATCH else None


async def purge_tasks(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, task_ids: Sequence[str], statuses: Collection[str]
) -> list[str]:
    """Remove those of these tasks that are still in one of these states, as the setting `purge.mode` says."""
    mode = (await engine.settings_cache.load(tx, workspace)).settings().purge.mode
    work = UnitOfWork(tx, engine, caller)
    locked = await work.lock(task_ids)
    rows = [row for row in locked if row.status in statuses and work.is_newest(row)]
    if mode == "delete":
        rows = [row for row in rows if row.status not in CLAIMED_STATES]
        await _delete(work, rows)
    else:
        rows = [row for row in rows if row.status not in FINAL]
        for row in rows:
            await review_as_cancelled(work, row, "purged")
            dependents.cancel_row(work, row, "purged")
        await dependents.cancel_dependents(work, {row.root_id for row in rows})
        await work.save()
    return [row.id for row in rows]


async def _delete(work: UnitOfWork, rows: list[TaskRow]) -> None:
    """Remove whole lineages for good, leaving a tombstone each; what waits for them loses a cancelled dependency."""
    if not rows:
        return
    for row in rows:
        if row.status not in FINAL:
            dependents.cancel_row(work, row, "purged")
    roots = sorted({row.root_id for row in rows})
    await dependents.cancel_dependents(work, roots)
    await work.save()
    older = await work.tx.all("lineage_rows", items=[(root,) for root in roots])
    gone = [work.rows[root] for root in roots] + await work.lock(row["id"] for row in older)
    keys = [(row.workspace, row.idempotency_key, row.id) for row in gone if row.idempotency_key is not None]
    await work.tx.run("drop_keys", items=sorted(keys))
    await erase(work.tx, [row.id for row in gone])
    await work.tx.run("delete_names", items=[(row.id,) for row in gone])
    await work.tx.run("delete_aliases", items=[(row.id,) for row in gone])
    await work.tx.run("delete_messages", items=[(row.id,) for row in gone])
    await work.tx.run("delete_effects", items=[(row.id,) for row in gone])
    await artifacts.forget(work.tx, [row.id for row in gone])
    tombstones = [(row.id, row.workspace, work.now, work.caller.actor, "purged") for row in gone]
    await work.tx.insert("insert_tombstones", tombstones)


async def erase(tx: Tx, task_ids: list[str]) -> None:
    """Delete the rows of these tasks; events stay, and so do the names, which archived tasks keep."""
    items = [(id_,) for id_ in task_ids]
    if items:
        for table in (
            "attempts",
            "outputs",
            "missing_reports",
            "log_sizes",
            "instructions",
            "dead_letters",
            "progress",
            "steps",
            "tags",
            "own_edges",
            "waits",
            "approvals",
            "sessions",
            "charges",
            "claim_models",
            "claim_accounts",
            "bodies",
            "tasks",
        ):
            await tx.run(f"delete_{table}", items=items)
        await index.forget(tx, task_ids)


@implements(Control.blocked)
async def blocked(call: Call) -> WaitingWork:
    shared = call.shared
    async with shared.counting:
        known = shared.counted.get(call.workspace)
        found, shared.counted[call.workspace] = await call.read(
            lambda tx: causes.read(tx, call.engine, call.workspace, known)
        )
    return found


@reading(Control.backpressure)
async def backpressure(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> Backpressure:
    return await capacity.read(tx, engine, workspace)


@reading(Control.maintenance)
async def maintenance(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[MaintenanceJob]:
    rows = await tx.all("list_jobs")
    rest = maintenance_health.resting(rows, tx.now)
    return [_job(row, rest, tx.now) for row in maintenance_health.jobs_of(rows)]


def _job(row: Row, rest: Resting | None, now: float) -> MaintenanceJob:
    rests = rest if row["name"] in {"reclaim", "health"} else None
    return record(
        MaintenanceJob,
        row,
        counts=msgspec.json.decode(row["counts"] or "{}"),
        late_sec=round(maintenance_health.late_sec(row, now), 1),
        rests_until=None if rests is None else rests.until,
        why=None if rests is None else rests.why,
    )


@reading(Control.bridges)
async def bridges(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[BridgeInfo]:
    return [BridgeInfo(**dict(row)) for row in await tx.all("list_bridges", workspace=workspace)]
