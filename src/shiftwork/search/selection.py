"""Which tasks a filter means: their ids a page at a time, and how many are in each state."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shiftwork.engine import read
from shiftwork.model.errors import InputError
from shiftwork.model.states import STORED
from shiftwork.model.times import epoch
from shiftwork.search import index
from shiftwork.search.model import LEVELS, TaskFilter
from shiftwork.search.policy import Terms, terms
from shiftwork.store.store import Tx


class Selection(NamedTuple):
    """A filter as statements take it."""

    parameters: dict[str, Any]
    searched: bool
    lag: int

    async def page(self, tx: Tx, after: str | None, count: int, *, newest: bool = False) -> list[str]:
        """Ids behind one, in the order of their creation."""
        name = "list_newest_found_tasks" if newest else "list_found_tasks"
        if not self.searched:
            name = "list_newest_tasks" if newest else "list_tasks"
        return [row["id"] for row in await tx.all(name, **self.parameters, after=after, count=count)]

    async def counts(self, tx: Tx) -> dict[str, int]:
        """How many there are in each state."""
        rows = await tx.all("count_found_tasks" if self.searched else "count_tasks", **self.parameters)
        found = {row["status"]: int(row["total"]) for row in rows}
        return {str(status): found[status] for status in STORED if status in found}


class CheckedFilter(NamedTuple):
    """A filter whose words were checked, before the store is asked anything."""

    where: TaskFilter
    statuses: list[str]
    terms: Terms | None


def checked(where: TaskFilter) -> CheckedFilter:
    """Refuse states that do not exist, and a search without words."""
    given = [where.status] if isinstance(where.status, str) else where.status or []
    statuses = [word.strip() for text in given for word in text.split(",") if word.strip()]
    if unknown := [each for each in statuses if each not in STORED]:
        raise InputError(f"there is no status {unknown[0]!r}", where="status", hint="One of " + ", ".join(STORED) + ".")
    return CheckedFilter(where, statuses, None if where.search is None else terms(where.search))


async def select(tx: Tx, workspace: str, wanted: CheckedFilter, *, as_of: float | None = None) -> Selection:
    """A filter as statements take it, with the tasks and the DAG that it names; of tasks created until a moment."""
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
    if wanted.terms is None:
        return Selection(parameters, searched=False, lag=0)
    found = await index.find(tx, workspace, wanted.terms)
    return Selection({**parameters, **found.parameters}, searched=True, lag=found.lag)
