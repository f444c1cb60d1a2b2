"""Reads how unsuccessful dependencies ended, for dependents that continue without them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from shiftwork.model import ids, reasons
from shiftwork.model.states import State
from shiftwork.model.task import FailedDependency

if TYPE_CHECKING:
    from shiftwork.engine.unit_of_work import UnitOfWork
    from shiftwork.store.store import Row

ENDS = frozenset({State.DEAD_LETTERED, State.FAILED, State.CANCELLED})


async def failed_ends(work: UnitOfWork, roots: Collection[str]) -> dict[str, FailedDependency]:
    """The lineages that ended without success. A displaced task does not count: it returns by itself."""
    if not roots:
        return {}
    found: dict[str, FailedDependency] = {}
    known = set()
    for stored in await work.tx.all("ends_of", items=[(root,) for root in sorted(roots)]):
        known.add(stored["root_id"])
        row = work.rows.get(stored["id"])  # the state set by this verb, not saved yet
        status = stored["status"] if row is None else row.status
        reason = stored["failure_reason"] if row is None else row.failure_reason
        error = stored["error"] if row is None else work.error_of(row) or stored["error"]
        if status == State.CANCELLED:
            error = stored["cancel_reason"] if row is None else row.cancel_reason
        if status in ENDS and reason != reasons.DISPLACED:
            found[stored["root_id"]] = FailedDependency(ids.show_task(stored["root_id"]), status, reason, error)
    for archived in await _archived(work, set(roots) - known):
        found[archived] = FailedDependency(ids.show_task(archived), "cancelled", reasons.CANCELLED)
    return found


async def _archived(work: UnitOfWork, roots: Collection[str]) -> list[str]:
    rows = await work.tx.all("archived_states", items=[(root,) for root in sorted(roots)]) if roots else ()
    return [row["id"] for row in rows if row["status"] == State.CANCELLED]


def failed_dependencies(edges: Sequence[Row]) -> list[FailedDependency]:
    """The failed dependencies of these edges that their dependents continued without."""
    return [msgspec.json.decode(edge["failure"], type=FailedDependency) for edge in edges if edge["failure"]]
