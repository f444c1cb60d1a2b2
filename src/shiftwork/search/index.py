"""The index of words: it follows the event log, and a search reads newer events itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shiftwork.engine import event_log
from shiftwork.engine.event_log import Stretch
from shiftwork.model import ids
from shiftwork.search.policy import Terms, index_words
from shiftwork.store.store import Row, Tx

FRESH = 1_000
"""The most events after the index that a search reads itself."""

_TEXTS = ("title", "type", "external_id", "issue_id", "tool_name", "created_by", "trigger_summary", "tags")
_ERRORS = ("failure_reason", "cancel_reason", "errors")


class Entry(NamedTuple):
    """One task in the index."""

    id: str
    words: list[str]


class Found(NamedTuple):
    """What a search adds to a statement that lists tasks."""

    parameters: dict[str, Any]
    lag: int
    """Events that neither the index nor the search has read; 0 if the result is complete."""


async def read_mark(tx: Tx) -> int:
    """The number of the last event in the index."""
    row = await tx.one("read_search_mark")
    return int(row["read_to"]) if row else 0


async def changed_tasks(tx: Tx, after: int, stretch: Stretch, workspace: str | None = None) -> list[str]:
    """Tasks whose words may have changed according to the log, each once."""
    rows = await tx.all("changed_tasks", after=after, workspace=workspace, **stretch._asdict())
    return list(dict.fromkeys(row["id"] for row in rows))


async def read_texts(tx: Tx, task_ids: Sequence[str]) -> Sequence[Row]:
    """The current index entries of these tasks, without removed tasks."""
    return await tx.all("search_texts", items=[(each,) for each in task_ids]) if task_ids else ()


def entry(row: Row) -> Entry:
    """A task with its words."""
    texts = [row[name] for name in (*_TEXTS, *_ERRORS)]
    return Entry(row["id"], index_words(texts, [row["payload"], row["spec"]]))


async def find(tx: Tx, workspace: str, terms: Terms) -> Found:
    """The parameters of a statement that lists matching tasks: from the index, and from changes since."""
    mark, newest = await read_mark(tx), await event_log.last(tx)
    after = max(mark, newest - FRESH)
    changed = await changed_tasks(tx, after, Stretch(newest, newest), workspace) if newest > after else []
    texts = await read_texts(tx, changed)
    fresh = [found.id for found in map(entry, texts) if terms.match(found.words)]
    parameters = {
        "tsquery": terms.tsquery,
        "fts5": terms.fts5,
        "changed": [(each,) for each in changed],
        "matching": [(each,) for each in fresh],
    }
    return Found(parameters, after - mark)


async def write(tx: Tx, after: int, last: int, found: Sequence[Entry]) -> int | None:
    """Add entries read from the log up to `last`; None if another process did."""
    mark = await tx.one("lock_search_mark")
    if mark is None or mark["read_to"] != after:
        return None
    await _save(tx, found)
    await tx.run("move_search_mark", read_to=last)
    return len(found)


async def save(tx: Tx, found: Sequence[Entry]) -> None:
    """Add entries to the index without moving the mark."""
    await tx.one("lock_search_mark")
    await _save(tx, found)


async def _save(tx: Tx, found: Sequence[Entry]) -> None:
    if found:
        await tx.run("save_search_entries", items=[(each.id, ids.tail(each.id)) for each in found])
        await tx.run("save_search_words", items=[(each.id, " ".join(each.words)) for each in found])


async def forget(tx: Tx, task_ids: Sequence[str]) -> None:
    """Remove tasks from the index once they are removed from the queue."""
    await tx.one("lock_search_mark")
    items = [(each,) for each in task_ids]
    await tx.run("delete_search_words", items=items)
    await tx.run("delete_search_entries", items=items)
