"""How many tasks may wait: letting newcomers in, taking places from less urgent work, and bringing that back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from shiftwork.core import reasons
from shiftwork.core.errors import QueueFull
from shiftwork.core.settings import Level, Settings
from shiftwork.policy import capacity, rank
from shiftwork.policy.capacity import Limits
from shiftwork.queue import consequences
from shiftwork.queue.engine import Engine
from shiftwork.queue.observation import conditions
from shiftwork.queue.observation.conditions import Finding
from shiftwork.queue.rows import TaskRow
from shiftwork.queue.work import Work
from shiftwork.store.store import Tx

OVERFLOW = "overflow"
"""Why a task was cancelled that was dropped from a full queue."""


class Backpressure(msgspec.Struct, frozen=True):
    """How full the queue is, for producers. What no limit is set on is not counted."""

    state: Literal["normal", "warning", "critical"]
    full: list[str]
    """Levels that have no free room: such a task is refused, or takes a less urgent one's place."""
    waiting: dict[str, int]
    limits: dict[str, int | None]
    room: dict[str, int | None]
    """How many more of each level find room; null is no limit."""
    warnings: list[str]
    retry_after_sec: float | None
    """When to try again, where a level is full."""


async def enter(tx: Tx, engine: Engine, workspace: str) -> None:
    """Wait for the turn to submit, where room is limited: two that count at once would both find the last place.

    Taken before any row is locked: whoever holds it waits for nobody who waits for it.
    """
    if capacity.limits_of((await engine.book.of(tx, workspace)).settings()) is not None:
        await tx.take_turn(f"capacity:{workspace}")


async def admit(work: Work, workspace: str, priorities: Iterable[float]) -> None:
    """Let newcomers into free room or into the places of less urgent tasks, all or none. The turn must be taken."""
    settings = (await work.engine.book.of(work.tx, workspace)).settings()
    limits = capacity.limits_of(settings)
    newcomers = [rank.level(priority) for priority in priorities] if limits is not None else []
    if limits is None or not newcomers:
        return
    waiting = await tally(work.tx, workspace)
    needy = capacity.in_need(limits, waiting, newcomers)
    givers, refused = await _givers(work, workspace, settings, needy)
    if refused:
        raise _full(limits, waiting, refused[-1], settings)
    await _give_way(work, givers, settings)
    after = Counter(waiting)
    after.update(newcomers)
    after.subtract(rank.level(row.priority) for row in givers)
    if found := fills(settings, limits, after):
        await conditions.compare(work, workspace, "capacity", found)


def _full(limits: Limits, waiting: Mapping[Level, int], level: Level, settings: Settings) -> QueueFull:
    total = sum(waiting.values())
    whole = limits.total is not None and total >= limits.total
    count, limit = (total, limits.total) if whole else (waiting.get(level, 0), limits.of(level))
    what = "tasks wait" if whole else f"tasks of level {level} wait"
    return QueueFull(
        f"{count} {what}, at most {limit}, and none that is less urgent can give way",
        where="priority",
        mend=f"Submit it again in {settings.poll_interval_sec:g} s, when work has been taken; nothing was added.",
        level=level,
        waiting=count,
        limit=limit,
        retry_after=settings.poll_interval_sec,
    )


async def tally(tx: Tx, workspace: str) -> dict[Level, int]:
    return {row["level"]: int(row["total"]) for row in await tx.all("tally", workspace=workspace)}


async def _givers(
    work: Work, workspace: str, settings: Settings, needy: Sequence[Level]
) -> tuple[list[TaskRow], list[Level]]:
    """Who gives way to these newcomers, the least urgent level first, and the newcomers for whom nobody does."""
    left, givers = list(needy), list[TaskRow]()
    if settings.overflow == "reject":
        return givers, left
    for level in capacity.LEVELS:
        able = [newcomer for newcomer in left if level in capacity.below(newcomer)]
        found = await _oldest(work, workspace, level, len(able))
        givers += found
        for newcomer in able[: len(found)]:
            left.remove(newcomer)
    return givers, left


async def _oldest(work: Work, workspace: str, level: Level, count: int) -> list[TaskRow]:
    """The first of a level to give way, class by class. Rows that somebody has locked are passed over."""
    found: list[str] = []
    for class_ in capacity.CLASSES:
        if len(found) < count:
            rows = await work.tx.all(
                "givers",
                workspace=workspace,
                level=level,
                **class_._asdict(),
                recent_from=work.now - capacity.RECENT_SEC,
                count=count - len(found),
            )
            found += [row["id"] for row in rows]
    return await work.lock(found)


async def _give_way(work: Work, givers: Sequence[TaskRow], settings: Settings) -> None:
    if settings.overflow == "drop_oldest_low":
        for row in givers:
            consequences.cancel_row(work, row, OVERFLOW)
        await consequences.cancel_dependents(work, {row.root_id for row in givers})
        return
    for row in givers:
        _displace(work, row)


def _displace(work: Work, row: TaskRow) -> None:
    """To the dead letters until there is room. What depends on it waits: it has not failed."""
    path = work.move(row, "displace")
    row.failure_reason = reasons.DISPLACED
    work.tell(row, "displaced", path, reason=reasons.DISPLACED, data={"type": row.type})
    work.bury(row, reason=reasons.DISPLACED, error=reasons.MEANING[reasons.DISPLACED], poison=False)


def fills(settings: Settings, limits: Limits, waiting: Mapping[Level, int]) -> list[Finding]:
    """The limits that are nearly or wholly used up."""
    found = []
    for scope, share in capacity.filled(limits, waiting).items():
        fill = capacity.fill(share, settings)
        if fill != "normal":
            count = sum(waiting.values()) if scope == "total" else waiting.get(scope, 0)
            found.append(Finding(scope, f"capacity_{fill}", {"waiting": count, "limit": limits.of(scope)}))
    return found


async def read(tx: Tx, engine: Engine, workspace: str) -> Backpressure:
    """How full the queue is now."""
    settings = (await engine.book.of(tx, workspace)).settings()
    limits = capacity.limits_of(settings)
    waiting = await tally(tx, workspace) if limits is not None else {}
    room: dict[str, int | None] = {level: capacity.room(limits, waiting, level) for level in capacity.LEVELS}
    found = fills(settings, limits, waiting) if limits is not None else []
    counts: dict[str, int] = {level: waiting.get(level, 0) for level in capacity.LEVELS}
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


async def look(work: Work, workspace: str, settings: Settings) -> None:
    """Tell how full the queue is where that has changed; room that was gained is noticed only here."""
    limits, found = capacity.limits_of(settings), list[Finding]()
    if limits is not None:
        await work.tx.take_turn(f"capacity:{workspace}")
        found = fills(settings, limits, await tally(work.tx, workspace))
    await conditions.compare(work, workspace, "capacity", found)


async def begin_counting(tx: Tx, engine: Engine, workspace: str) -> int:
    """Make what waits countable, where the settings in force ask for it; how many tasks were not."""
    if not capacity.is_counted((await engine.book.as_written(tx, workspace)).settings()):
        return 0
    await tx.run("read_whole_tables")
    return len(await tx.all("tally_workspace", workspace=workspace))


async def places(tx: Tx, engine: Engine, workspace: str, most: int) -> list[str]:
    """Displaced tasks that find room now, the most urgent level first and the longest gone first in it."""
    limits = capacity.limits_of((await engine.book.of(tx, workspace)).settings())
    await tx.take_turn(f"capacity:{workspace}")
    waiting: Counter[Level] = Counter(await tally(tx, workspace) if limits is not None else {})
    found: list[str] = []
    for level in reversed(capacity.LEVELS):
        room = capacity.room(limits, waiting, level)
        count = most - len(found) if room is None else min(room, most - len(found))
        if count:
            rows = await tx.all("displaced_letters", workspace=workspace, level=level, count=count)
            found += [row["task_id"] for row in rows]
            waiting[level] += len(rows)
    return found
