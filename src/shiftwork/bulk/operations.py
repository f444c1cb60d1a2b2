"""Implements bulk changes: finds a page of tasks, and changes them in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shiftwork.bulk.api import MAX_REFUSED, Bulk
from shiftwork.bulk.model import Action, BulkPage
from shiftwork.control.operations import purge_tasks
from shiftwork.dead_letters.operations import ReviewDecision, review
from shiftwork.engine import change
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import check, ids
from shiftwork.model.errors import InputError, WrongState
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import CLAIMED_STATES, FINAL, SETTLED, STORED, WAITING
from shiftwork.operation.local import Call, implements
from shiftwork.search import selection
from shiftwork.search.model import TaskFilter
from shiftwork.search.selection import CheckedFilter
from shiftwork.store.store import Tx

MEANT: dict[str, frozenset[str]] = {
    "cancel": frozenset(WAITING | CLAIMED_STATES),
    "retry": frozenset(SETTLED),
    "set_priority": frozenset(WAITING),
    "purge": frozenset(WAITING),
}
"""The default states of each action."""

POSSIBLE: dict[str, frozenset[str]] = {**MEANT, "cancel": frozenset(STORED) - FINAL, "purge": frozenset(STORED)}
"""The states in which each action is possible."""


class Change(NamedTuple):
    """The change of a page's tasks."""

    action: Action
    reason: str | None
    priority: float | None


class FoundPage(NamedTuple):
    """The tasks of a page, as they were found."""

    ids: list[str]
    statuses: Sequence[str]
    """The selected states."""
    is_full: bool
    as_of: float
    lag: int


@implements(Bulk.page)
async def page(
    call: Call,
    action: Action,
    where: TaskFilter | Mapping[str, Any],
    *,
    reason: str | None = None,
    priority: float | None = None,
    dry_run: bool = False,
    after: str | None = None,
    as_of: float | None = None,
    limit: int = 200,
) -> BulkPage:
    assert isinstance(where, TaskFilter)
    wanted = _checked(action, where, priority)
    cursor, until = check.cursor(after), call.engine.store.now() if as_of is None else as_of
    if dry_run:
        return await call.read(lambda tx: _count(tx, call.workspace, action, wanted, until))

    async def find_page(tx: Tx) -> FoundPage:
        chosen = await selection.select(tx, call.workspace, wanted, as_of=until)
        found = await chosen.page(tx, cursor, limit)
        return FoundPage(found, wanted.statuses, len(found) == limit, until, chosen.lag)

    found = await call.read(find_page)
    return await call.run(_apply, call.workspace, Change(action, reason, priority), found)


def _checked(action: Action, where: TaskFilter, priority: float | None) -> CheckedFilter:
    """The filter, narrowed to the states in which the action can be done."""
    if where == TaskFilter():
        raise InputError("a bulk change needs at least one condition", where="where", hint="Give a status, a type, …")
    if (action == "set_priority") is (priority is None):
        what = "set_priority needs a priority" if priority is None else f"{action} takes no priority"
        raise InputError(what, where="priority")
    wanted = selection.checked(check.fit(where, "where"))
    statuses = wanted.statuses or sorted(MEANT[action])
    if impossible := [status for status in statuses if status not in POSSIBLE[action]]:
        allowed = ", ".join(status for status in STORED if status in POSSIBLE[action])
        what = f"{action} is not possible for tasks that are {impossible[0]}"
        raise InputError(what, where="where.status", hint=f"Use one or more of {allowed}.")
    return wanted._replace(statuses=statuses)


async def _count(tx: Tx, workspace: str, action: Action, wanted: CheckedFilter, as_of: float) -> BulkPage:
    chosen = await selection.select(tx, workspace, wanted, as_of=as_of)
    counts = await chosen.counts(tx)
    return BulkPage(action, counts, 0, 0, [], None, as_of, chosen.lag)


async def _apply(tx: Tx, engine: Engine, caller: Caller, workspace: str, wanted: Change, found: FoundPage) -> BulkPage:
    """Change those still in a selected state; the others have moved on since they were found.

    The whole answer is built here, so that a repeated request gets the same one, including the next cursor.
    """
    locked = await UnitOfWork(tx, engine, caller).lock(found.ids)
    before = {row.id: str(row.status) for row in locked}
    still = [each for each in found.ids if before.get(each) in found.statuses]
    outcomes = await _do(tx, engine, caller, workspace, wanted, still) if still else []
    done = [each for each, outcome in zip(still, outcomes, strict=True) if outcome.error is None]
    refused = [outcome for outcome in outcomes if outcome.error is not None]
    refused += [_moved(each, before.get(each)) for each in found.ids if before.get(each) not in found.statuses]
    return BulkPage(
        wanted.action,
        counts=dict(Counter(before[each] for each in done)),
        changed=len(done),
        skipped=len(refused),
        refused=refused[:MAX_REFUSED],
        next=ids.show_task(found.ids[-1]) if found.is_full else None,
        as_of=found.as_of,
        index_lag=found.lag,
    )


def _moved(task_id: str, status: str | None) -> Outcome:
    shown = ids.show_task(task_id)
    return Outcome(shown, error=WrongState(f"task {shown} is now {status or 'gone'}", task_id=shown, status=status))


async def _do(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, wanted: Change, task_ids: Sequence[str]
) -> list[Outcome]:
    if wanted.action == "cancel":
        return await change.cancel(tx, engine, caller, task_ids, wanted.reason or "cancelled", None)
    if wanted.action == "retry":
        return await review(tx, engine, caller, task_ids, ReviewDecision("retry", wanted.reason))
    if wanted.action == "set_priority":
        assert wanted.priority is not None
        return await change.set_priority(tx, engine, caller, task_ids, wanted.priority, wanted.reason)
    removed = set(await purge_tasks(tx, engine, caller, workspace, task_ids, STORED))
    return [_purged(task_id, task_id in removed) for task_id in task_ids]


def _purged(task_id: str, is_removed: bool) -> Outcome:  # noqa: FBT001  # called once
    shown = ids.show_task(task_id)
    error = WrongState(f"task {shown} cannot be purged: it has ended, is held, or has a newer one", task_id=shown)
    return Outcome(shown, "purged") if is_removed else Outcome(shown, error=error)
