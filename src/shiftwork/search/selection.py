"""Selects the tasks that match a filter: a page of ids, or counts by state."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shiftwork.engine import read
from shiftwork.model.errors import InputError
from shiftwork.model.states import FINAL, STORED
from shiftwork.model.times import epoch
from shiftwork.search import index
from shiftwork.search.model import LEVELS, TaskFilter
from shiftwork.search.policy import Terms, terms
from shiftwork.store.store import Tx

FEW_OPEN = 2_000
"""The most unfinished tasks to read for one page."""


class Selection(NamedTuple):
    """A filter as parameters of statements."""

    parameters: dict[str, Any]
    searched: bool
    lag: int
    is_open: bool
    """Whether all requested states are of unfinished tasks."""

    async def page(self, tx: Tx, after: str | None, count: int, *, newest: bool = False) -> list[str]:
        """The ids after one, in order of creation."""
        given = {**self.parameters, "after": after, "count": count}
        order = "list_newest" if newest else "list"
        if self.searched:
            rows = await tx.all(f"{order}_found_tasks", **given)
        elif (few := await self._few(tx)) is not None:
            rows = await tx.all(f"{order}_few_tasks", few=few, **given) if few else ()
        else:
            rows = await tx.all(f"{order}_tasks", **given)
        return [row["id"] for row in rows]

    async def _few(self, tx: Tx) -> list[tuple[str]] | None:
        """All tasks in these states, if they are few: otherwise finding them would read ended ones."""
        if not self.is_open:
            return None
        found = await tx.all(
            "open_ids",
            workspace=self.parameters["workspace"],
            statuses=self.parameters["statuses"],
            most=FEW_OPEN + 1,
        )
        return [(row["id"],) for row in found] if len(found) <= FEW_OPEN else None

    async def counts(self, tx: Tx) -> dict[str, int]:
        """The number of tasks in each state."""
        rows = await tx.all("count_found_tasks" if self.searched else "count_tasks", **self.parameters)
        found = {row["status"]: int(row["total"]) for row in rows}
        return {str(status): found[status] for status in STORED if status in found}


class CheckedFilter(NamedTuple):
    """Check a filter before the store is read."""

    where: TaskFilter
    statuses: list[str]
    terms: Terms | None

    @property
    def is_kept(self) -> bool:
        """Whether the filter has only states and a type, by which finished tasks are counted."""
        return self.where == TaskFilter(status=self.where.status, type=self.where.type)


def checked(where: TaskFilter) -> CheckedFilter:
    """Refuse states that do not exist, and a search without words."""
    given = [where.status] if isinstance(where.status, str) else where.status or []
    statuses = [word.strip() for text in given for word in text.split(",") if word.strip()]
    if unknown := [each for each in statuses if each not in STORED]:
        raise InputError(f"there is no status {unknown[0]!r}", where="status", hint="One of " + ", ".join(STORED) + ".")
    return CheckedFilter(where, statuses, None if where.search is None else terms(where.search))


async def select(tx: Tx, workspace: str, wanted: CheckedFilter, *, as_of: float | None = None) -> Selection:
    """A filter as parameters of statements, with the tasks and the DAG that it names, up to a time of creation."""
    where = wanted.where
    parameters: dict[str, Any] = {
        "workspace": workspace,
        "type": where.type,
        "agent": where.agent,
        "issue": where.issue,
        "tag": where.tag,
        "dag": None if where.dag is None else read.find_dag(where.dag),
        "parent": None if where.parent is None else await read.find(tx, workspace, where.parent),
        "since": epoch(where.since),
        "until": epoch(where.until),
        "reason": where.reason,
        "least": None if where.level is None else LEVELS[where.level][0],
        "most": None if where.level is None else LEVELS[where.level][1],
        "as_of": as_of,
        "any_status": not wanted.statuses,
        "statuses": msgspec.json.encode(wanted.statuses).decode(),
    }
    is_open = bool(wanted.statuses) and FINAL.isdisjoint(wanted.statuses)
    if wanted.terms is None:
        return Selection(parameters, searched=False, lag=0, is_open=is_open)
    found = await index.find(tx, workspace, wanted.terms)
    return Selection({**parameters, **found.parameters}, searched=True, lag=found.lag, is_open=is_open)
