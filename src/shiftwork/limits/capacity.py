"""Queue capacity: admits tasks, displaces less urgent ones, and brings them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from shiftwork.engine import dependents, rank
from shiftwork.engine.engine import Engine
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits import capacity_policy
from shiftwork.limits.capacity_policy import Limits
from shiftwork.limits.model import Backpressure
from shiftwork.model import reasons
from shiftwork.model.errors import QueueFull
from shiftwork.observe import alert_conditions
from shiftwork.observe.alert_conditions import Finding
from shiftwork.settings.model import Level, Settings
from shiftwork.store.store import Tx

OVERFLOW = "overflow"
"""The cancel reason of a task dropped from a full queue."""


async def enter(tx: Tx, engine: Engine, workspace: str) -> bool:
    """Lock submissions if capacity is limited: two that count at once would both find the last place.

    Taken before any row is locked, so that it cannot deadlock. Returns whether capacity is limited.
    """
    if capacity_policy.limits_of((await engine.settings_cache.load(tx, workspace)).settings()) is None:
        return False
    await tx.advisory_lock(f"capacity:{workspace}")
    return True


async def admit(work: UnitOfWork, workspace: str, priorities: Iterable[float]) -> None:
    """Admit new tasks into free places or those of less urgent tasks, all or none. The lock must be held."""
    settings = (await work.engine.settings_cache.load(work.tx, workspace)).settings()
    limits = capacity_policy.limits_of(settings)
    newcomers = [rank.level(priority) for priority in priorities] if limits is not None else []
    if limits is None or not newcomers:
        return
    waiting = await tally(work.tx, workspace)
    needy = capacity_policy.needing_displacement(limits, waiting, newcomers)
    displaced, refused = await _choose_displaced(work, workspace, settings, needy)
    if refused:
        raise _full(limits, waiting, refused[-1], settings)
    await _make_room(work, displaced, settings)
    after = Counter(waiting)
    after.update(newcomers)
    after.subtract(rank.level(row.priority) for row in displaced)
    if found := fills(settings, limits, after):
        await alert_conditions.compare(work, workspace, "capacity", found)


def _full(limits: Limits, waiting: Mapping[Level, int], level: Level, settings: Settings) -> QueueFull:
    total = sum(waiting.values())
    whole = limits.total is not None and total >= limits.total
    count, limit = (total, limits.total) if whole else (waiting.get(level, 0), limits.of(level))
    what = "tasks wait" if whole else f"tasks of level {level} wait"
    return QueueFull(
        f"{count} {what}, at most {limit}, and no less urgent task can be displaced",
        where="priority",
        hint=f"Submit it again in {settings.poll_interval_sec:g} s, when work has been taken; nothing was added.",
        level=level,
        waiting=count,
        limit=limit,
        retry_after=settings.poll_interval_sec,
    )


async def tally(tx: Tx, workspace: str) -> dict[Level, int]:
    return {row["level"]: int(row["total"]) for row in await tx.all("tally", workspace=workspace)}


async def _choose_displaced(
    work: UnitOfWork, workspace: str, settings: Settings, needy: Sequence[Level]
) -> tuple[list[TaskRow], list[Level]]:
    """The tasks displaced by these new ones, the least urgent level first, and the new tasks without a place."""
    left, displaced = list(needy), list[TaskRow]()
    if settings.overflow == "reject":
        return displaced, left
    for level in capacity_policy.LEVELS:
        able = [newcomer for newcomer in left if level in capacity_policy.below(newcomer)]
        found = await _oldest(work, workspace, level, len(able))
        displaced += found
        for newcomer in able[: len(found)]:
            left.remove(newcomer)
    return displaced, left


async def _oldest(work: UnitOfWork, workspace: str, level: Level, count: int) -> list[TaskRow]:
    """The first tasks of a level to be displaced, class by class. Locked rows are skipped."""
    found: list[str] = []
    for class_ in capacity_policy.CLASSES:
        if len(found) < count:
            rows = await work.tx.all(
                "displaceable",
                workspace=workspace,
                level=level,
                **class_._asdict(),
                recent_from=work.now - capacity_policy.RECENT_SEC,
                count=count - len(found),
            )
            found += [row["id"] for row in rows]
    return await work.lock(found)


async def _make_room(work: UnitOfWork, displaced: Sequence[TaskRow], settings: Settings) -> None:
    if settings.overflow == "drop_oldest_low":
        for row in displaced:
            dependents.cancel_row(work, row, OVERFLOW)
        await dependents.cancel_dependents(work, {row.root_id for row in displaced})
        return
    for row in displaced:
        _displace(work, row)


def _displace(work: UnitOfWork, row: TaskRow) -> None:
    """Move the task to the dead letters until there is room. Its dependents wait: it has not failed."""
    path = work.move(row, "displace")
    row.failure_reason = reasons.DISPLACED
    work.emit(row, "displaced", path, reason=reasons.DISPLACED, data={"type": row.type})
    work.dead_letter(row, reason=reasons.DISPLACED, error=reasons.MEANING[reasons.DISPLACED], poison=False)


def fills(settings: Settings, limits: Limits, waiting: Mapping[Level, int]) -> list[Finding]:
    """The limits that are nearly or fully used up."""
    found = []
    for scope, share in capacity_policy.filled(limits, waiting).items():
        fill = capacity_policy.fill(share, settings)
        if fill != "normal":
            count = sum(waiting.values()) if scope == "total" else waiting.get(scope, 0)
            found.append(Finding(scope, f"capacity_{fill}", {"waiting": count, "limit": limits.of(scope)}))
    return found


async def read(tx: Tx, engine: Engine, workspace: str) -> Backpressure:
    """How full the queue is now."""
    settings = (await engine.settings_cache.load(tx, workspace)).settings()
    limits = capacity_policy.limits_of(settings)
    waiting = await tally(tx, workspace) if limits is not None else {}
    room: dict[str, int | None] = {
        level: capacity_policy.room(limits, waiting, level) for level in capacity_policy.LEVELS
    }
    found = fills(settings, limits, waiting) if limits is not None else []
    counts: dict[str, int] = {level: waiting.get(level, 0) for level in capacity_policy.LEVELS}
    full = [level for level, left in room.items() if left == 0]
    return Backpressure(
        state=_worst(found),
        full=full,
        waiting={} if limits is None else {**counts, "total": sum(counts.values())},
        limits={} if limits is None else limits._asdict(),
        room=room,
        warnings=[_warning(finding) for finding in found],
        retry_after_sec=settings.poll_interval_sec if full else None,
    )


def _worst(found: Sequence[Finding]) -> Literal["normal", "warning", "critical"]:
    if any(finding.alert == "capacity_critical" for finding in found):
        return "critical"
    return "warning" if found else "normal"


def _warning(finding: Finding) -> str:
    facts = finding.facts
    return f"{finding.alert.removeprefix('capacity_')}: {finding.subject} {facts['waiting']} of {facts['limit']}"


async def check_room(work: UnitOfWork, workspace: str, settings: Settings) -> None:
    """Report how full the queue is, if that has changed; only here is free room noticed."""
    limits, found = capacity_policy.limits_of(settings), list[Finding]()
    if limits is not None:
        await work.tx.advisory_lock(f"capacity:{workspace}")
        found = fills(settings, limits, await tally(work.tx, workspace))
    await alert_conditions.compare(work, workspace, "capacity", found)


async def begin_counting(tx: Tx, engine: Engine, workspace: str) -> int:
    """Begin to count waiting tasks, if the settings require it; returns how many were not counted."""
    if not capacity_policy.is_counted((await engine.settings_cache.as_written(tx, workspace)).settings()):
        return 0
    await tx.run("read_whole_tables")
    return len(await tx.all("tally_workspace", workspace=workspace))


async def places(tx: Tx, engine: Engine, workspace: str, most: int) -> list[str]:
    """Displaced tasks that now find room, the most urgent level first, the earliest displaced first within it."""
    limits = capacity_policy.limits_of((await engine.settings_cache.load(tx, workspace)).settings())
    await tx.advisory_lock(f"capacity:{workspace}")
    waiting: Counter[Level] = Counter(await tally(tx, workspace) if limits is not None else {})
    found: list[str] = []
    for level in reversed(capacity_policy.LEVELS):
        room = capacity_policy.room(limits, waiting, level)
        count = most - len(found) if room is None else min(room, most - len(found))
        if count:
            rows = await tx.all("displaced_letters", workspace=workspace, level=level, count=count)
            found += [row["task_id"] for row in rows]
            waiting[level] += len(rows)
    return found
