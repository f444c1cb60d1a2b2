"""The critical path as a DAG grows: a task that gets dependents becomes more urgent, and so does all it waits for."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping

from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model.states import FINAL, State

MAX_COUNT = 256
"""So many edges above a new one are followed. The boost grows with the logarithm: further up, one more is not seen."""


async def above(work: UnitOfWork, roots: Collection[str]) -> set[str]:
    """What these wait for, directly or not; to be locked together with them, before any DAG is."""
    ways = await work.tx.all("edges_above", items=[(root,) for root in sorted(roots)], count=MAX_COUNT)
    return {way["dependency"] for way in ways}


async def lengthen(work: UnitOfWork, below: Mapping[str, int]) -> None:
    """Chains of this length wait for these lineages now. What is longer already stays, with all above it.

    Rows that are not locked yet are locked in the order of ids, as tasks always are.
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
    """The row that answers for a lineage; None for one that has not come yet, or is in the archive."""
    rows = await work.lock([root])
    if not rows or rows[0].newest_id is None:
        return rows[0] if rows else None
    return next(iter(await work.lock([rows[0].newest_id])), None)
