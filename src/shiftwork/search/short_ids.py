"""Short ids: the end of a task's id, as tables and pages print it."""

from __future__ import annotations

from shiftwork.engine import event_log
from shiftwork.model import ids
from shiftwork.model.errors import AmbiguousId
from shiftwork.search import index
from shiftwork.store.store import Tx

MAX_LISTED = 10
FRESH = 100_000
"""The most events after the index to search for ids, which needs no text."""


async def find(tx: Tx, workspace: str, reference: str) -> str | None:
    """The task whose id ends with this text, or None. Call it only for text that is neither an id nor a name."""
    tail = ids.parse_short(reference)
    if tail is None:
        return None
    rows = await tx.all(
        "short_ids", workspace=workspace, low=tail, high=tail + "~", count=MAX_LISTED + 1
    )  # every character of an id is below the tilde
    found = {row["id"] for row in rows} | await _fresh(tx, workspace, tail)
    if len(found) > 1:
        raise _ambiguous(reference, sorted(found))
    return next(iter(found), None)


def _ambiguous(reference: str, found: list[str]) -> AmbiguousId:
    candidates = [ids.show_task(each) for each in found[:MAX_LISTED]]
    count = str(len(found)) if len(found) <= MAX_LISTED else f"more than {MAX_LISTED}"
    return AmbiguousId(
        f"the ids of {count} tasks end in {reference!r}",
        hint=f"Give the whole id: {', '.join(candidates)}{' …' if len(found) > MAX_LISTED else ''}",
        task_id=reference,
        candidates=candidates,
    )


async def _fresh(tx: Tx, workspace: str, tail: str) -> set[str]:
    """Search the tasks that are not in the index yet."""
    newest = await event_log.last(tx)
    after = max(await index.read_mark(tx), newest - FRESH)
    if newest <= after:
        return set()
    rows = await tx.all("newest_ids", after=after, workspace=workspace)
    named = [each for each in {row["id"] for row in rows} if ids.tail(each).startswith(tail)]
    known = await tx.all("read_tasks", items=[(each,) for each in named]) if named else ()
    return {row["id"] for row in known}
