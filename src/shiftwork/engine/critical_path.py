"""Updates the critical path as a DAG grows: a task that gets dependents becomes more urgent, and so do its
dependencies.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping

from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model.states import FINAL, State

MAX_COUNT = 256
"""The most edges followed upwards from a new one. The boost is logarithmic: further up, one more edge makes no
difference."""


async def above(work: UnitOfWork, roots: Collection[str]) -> set[str]:
    """Everything these wait for, directly or not: to be locked together with them, before any DAG."""
    ways = await work.tx.all("edges_above", items=[(root,) for root in sorted(roots)], count=MAX_COUNT)
    return {way["dependency"] for way in ways}


async def lengthen(work: UnitOfWork, below: Mapping[str, int]) -> None:
    """Record that chains of this length now wait for these lineages. A longer path stays, with all above it.

    Rows not locked yet are locked in id order, like all tasks.
    """
    shorter = {root: length for root, length in below.items() if await _is_shorter(work, root, length)}
    if not shorter:
        return
    up: dict[str, list[str]] = defaultdict(list)
    for way in await work.tx.all("edges_above", items=[(root,) for root in sorted(shorter)], count=MAX_COUNT):
        up[way["dependent"]].append(way["dependency"])
    await work.lock(sorted({dependency for each in up.values() for dependency in each}))
    ahead = deque(sorted(shorter.items()))
    while ahead:
        root, length = ahead.popleft()
        row = await _newest(work, root)
        if row is None or row.path_weight >= length or row.status in FINAL:
            continue
        row.path_weight = length
        work.touch(row)
        if row.status == State.READY:
            work.mark_ready(row, await work.settings_of(row))
        ahead.extend((dependency, length + 1) for dependency in up[root])


async def _is_shorter(work: UnitOfWork, root: str, length: int) -> bool:
    row = await _newest(work, root)
    return row is not None and row.path_weight < length and row.status not in FINAL


async def _newest(work: UnitOfWork, root: str) -> TaskRow | None:
    """The current row of a lineage; None if it is not submitted yet, or archived."""
    rows = await work.lock([root])
    if not rows or rows[0].newest_id is None:
        return rows[0] if rows else None
    return next(iter(await work.lock([rows[0].newest_id])), None)
