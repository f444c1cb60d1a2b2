"""Verbs of an operator on the queue as a whole: pause, resume, purge, settings."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shiftwork.core.resolve import InForce
from shiftwork.core.states import FINAL, HELD
from shiftwork.core.task import Fields, Name
from shiftwork.queue import consequences
from shiftwork.queue.change import review_as_cancelled
from shiftwork.queue.content import artifacts
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.lanes import wake_all
from shiftwork.queue.protection import capacity
from shiftwork.queue.rows import TaskRow
from shiftwork.queue.work import Work
from shiftwork.store.store import Tx

BATCH = 500
WHOLE = "*"
_LEVELS = {"high": (None, 30.0), "medium": (30.0, 60.0), "low": (60.0, None)}
_FIRST = "00000000-0000-0000-0000-000000000000"


async def pause(tx: Tx, engine: Engine, caller: Caller, workspace: str, scope: str, reason: str | None) -> None:
    """No claim begun after the answer gets work of this scope; what runs goes on."""
    await tx.run(
        "close_gate",
        workspace=workspace,
        scope=scope,
        kind="pause",
        reason=reason,
        now=tx.now,
        actor=caller.actor,
    )
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "queue_paused", data={"scope": scope, "reason": reason})
    await work.save_events()


async def resume(tx: Tx, engine: Engine, caller: Caller, workspace: str, scope: str) -> bool:
    """True when the gate was closed. Whoever waits for work is woken."""
    opened = await tx.one("open_gate", workspace=workspace, scope=scope, kind="pause")
    if opened is None:
        return False
    await wake_all(tx, workspace)
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "queue_resumed", data={"scope": scope})
    await work.save_events()
    return True


class Purge(Fields):
    """Which tasks to remove. At least one condition must be given; held tasks only where `held` says so."""

    status: list[Name] = []
    type: Name | None = None
    tag: Name | None = None
    level: Literal["high", "medium", "low"] | None = None
    created_before: float | None = None
    held: bool = False


async def purge_page(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, purge: Purge, after: str | None
) -> tuple[int, str | None]:
    """One bounded page of a purge: how many went, and where to go on."""
    low, high = _LEVELS.get(purge.level or "", (None, None))
    statuses = purge.status or ["pending", "waiting_approval", "ready", "retrying"] + (
        sorted(HELD) if purge.held else []
    )
    settings = (await engine.book.of(tx, workspace)).settings()
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
    work = Work(tx, engine, caller)
    locked = await work.lock(row["id"] for row in found)
    rows = [row for row in locked if row.status in statuses and work.is_newest(row)]
    if settings.purge.mode == "delete":
        rows = [row for row in rows if row.status not in HELD]
        await _delete(work, rows)
    else:
        for row in rows:
            await review_as_cancelled(work, row, "purged")
            consequences.cancel_row(work, row, "purged")
        await consequences.cancel_dependents(work, {row.root_id for row in rows})
        await work.save()
    return len(rows), found[-1]["id"] if len(found) == BATCH else None


async def _delete(work: Work, rows: list[TaskRow]) -> None:
    """Remove whole lineages for good, leaving a tombstone each; what waits for them loses a cancelled dependency."""
    if not rows:
        return
    for row in rows:
        if row.status not in FINAL:
            consequences.cancel_row(work, row, "purged")
    roots = sorted({row.root_id for row in rows})
    await consequences.cancel_dependents(work, roots)
    await work.save()
    older = await work.tx.all("lineage_rows", items=[(root,) for root in roots])
    gone = [work.rows[root] for root in roots] + await work.lock(row["id"] for row in older)
    keys = [(row.workspace, row.idempotency_key, row.id) for row in gone if row.idempotency_key is not None]
    await work.tx.run("drop_keys", items=sorted(keys))
    await erase(work.tx, [row.id for row in gone])
    await work.tx.run("delete_names", items=[(row.id,) for row in gone])
    await work.tx.run("delete_aliases", items=[(row.id,) for row in gone])
    await work.tx.run("delete_effects", items=[(row.id,) for row in gone])
    await artifacts.forget(work.tx, [row.id for row in gone])
    stones = [(row.id, row.workspace, work.now, work.caller.actor, "purged") for row in gone]
    await work.tx.insert("insert_tombstones", stones)


async def erase(tx: Tx, task_ids: list[str]) -> None:
    """Delete the rows of these tasks; events stay, and so do the names, which archived tasks keep."""
    items = [(id_,) for id_ in task_ids]
    if items:
        for table in (
            "attempts",
            "outputs",
            "missing_reports",
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
            "bodies",
            "tasks",
        ):
            await tx.run(f"delete_{table}", items=items)


async def change_setting(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, scope: str, key: str, value: Any, *, unset: bool
) -> list[InForce]:
    """Set one key for the workspace or a type; recorded, and in force at once."""
    await engine.book.add(tx, workspace)
    in_force = await engine.book.change(tx, workspace, scope, key, value, caller.actor, unset=unset)
    await capacity.begin_counting(tx, engine, workspace)
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "settings_changed", data={"scope": scope, "key": key, "value": None if unset else value})
    await work.save_events()
    return in_force


async def change_settings(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    scope: str,
    values: dict[str, Any],
    unset: list[str],
    profile: str | None,
) -> list[InForce]:
    """The profile first, then what is cleared, then what is set."""
    if profile is not None:
        await use_profile(tx, engine, caller, workspace, profile)
    for key in unset:
        await change_setting(tx, engine, caller, workspace, scope, key, None, unset=True)
    for key, value in values.items():
        await change_setting(tx, engine, caller, workspace, scope, key, value, unset=False)
    return await engine.book.in_force(tx, workspace, scope)


async def use_profile(tx: Tx, engine: Engine, caller: Caller, workspace: str, profile: str) -> None:
    await engine.book.use_profile(tx, workspace, profile)
    await capacity.begin_counting(tx, engine, workspace)
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "settings_changed", data={"profile": profile})
    await work.save_events()
