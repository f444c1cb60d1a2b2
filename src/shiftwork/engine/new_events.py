"""Events that a transaction is about to write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.store.store import Tx

_encode = msgspec.json.Encoder().encode


class NewEvent(msgspec.Struct):
    """One event, of a task, of a DAG or of neither. It can be changed until it is written."""

    at: float
    workspace: str
    verb: str
    actor: str
    task_id: str | None = None
    dag_id: str | None = None
    path: str | None = None
    request_id: str | None = None
    fence: int | None = None
    reason: str | None = None
    data: dict[str, Any] | None = None

    def row(self) -> tuple[Any, ...]:
        """In the column order of the statement `insert_events`."""
        return (
            self.at, self.workspace, self.task_id, self.dag_id, self.verb, self.path, self.actor, self.request_id,
            self.fence, self.reason, None if self.data is None else _encode(self.data).decode(),
        )  # fmt: skip


class Alike(NamedTuple):
    """The common fields of events when one call does the same to many tasks."""

    workspace: str
    verb: str
    path: str | None
    actor: str
    request_id: str | None
    data: str | None = None
    type: str | None = None
    """The type of the tasks, if metrics are counted by it."""


BatchItem = tuple[str, int | None, float | None]
"""One of these tasks, the fence of its claim, and how long it had waited or run, if known."""


class EventBatches:
    """Events of tasks that are DAGs of their own, grouped by their common fields.

    PostgreSQL stores each batch as one row: at a thousand tasks per call, a row per event would be a quarter of the
    total cost of a task.
    """

    def __init__(self) -> None:
        self._items: dict[Alike, list[BatchItem]] = {}

    def add(self, alike: Alike, items: Iterable[BatchItem]) -> None:
        self._items.setdefault(alike, []).extend(items)

    async def save(self, tx: Tx) -> None:
        alone: list[tuple[Any, ...]] = []
        for alike, items in self._items.items():
            for part in _cut(items):
                if len(part) == 1:
                    alone.append(_row(tx.now, alike, part[0]))
                else:
                    await tx.run("insert_event_batch", at=tx.now, items=part, **alike._asdict())
        if alone:
            await tx.insert("insert_events", alone)
        self._items.clear()


MAX_BATCH = 2_000
"""Split tasks into rows: the event numbers of a row lie close together, so that readers find it by any of them."""


def _cut(items: Sequence[BatchItem]) -> Iterable[Sequence[BatchItem]]:
    return (items[first : first + MAX_BATCH] for first in range(0, len(items), MAX_BATCH))


def _row(now: float, alike: Alike, item: BatchItem) -> tuple[Any, ...]:
    """In the column order of the statement `insert_events`."""
    task_id, fence, _ = item
    return (
        now, alike.workspace, task_id, task_id, alike.verb, alike.path, alike.actor, alike.request_id, fence, None,
        alike.data,
    )  # fmt: skip
