"""Event subscriptions: filters, names and cursors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from shiftwork.engine import event_log, read
from shiftwork.model import ids
from shiftwork.model.errors import InputError, NotFound
from shiftwork.model.events import chosen, every_name
from shiftwork.model.task import Name
from shiftwork.server.endpoint import ViewQuery
from shiftwork.server.sockets import frame

if TYPE_CHECKING:
    from shiftwork.model.history import Event
    from shiftwork.queue import Queue
    from shiftwork.store.store import Row
    from shiftwork.views.view import View

NOW = "now"
_CURSOR = re.compile(r"(\d{1,18})(?:-(\d{1,4}))?")
_ALL = 10_000
_encode = msgspec.json.Encoder().encode

Place = Annotated[str, Meta(pattern=rf"^({NOW}|{_CURSOR.pattern})$")]
"""A cursor of an earlier answer, or `now` for everything from now on."""


MessageBuffer = Annotated[list[Name], Meta(max_length=100)]


class EventFilter(ViewQuery):
    """Selects events: any of several values of a field may match; all fields must."""

    task: MessageBuffer = []
    """Tasks by their ids, or by the names their submitters gave them."""
    dag: MessageBuffer = []
    type: MessageBuffer = []
    """Types of task."""
    name: MessageBuffer = []
    """Names of events, as the view has them; `task.*` means all that begin so."""
    agent: MessageBuffer = []
    """Events caused by these agents, or about them."""
    verb: MessageBuffer = []


class Cursor(NamedTuple):
    """How far a subscriber has read: every row of the log up to `row`, or of that row only the first `names`."""

    row: int
    names: int = _ALL

    @property
    def after(self) -> int:
        """The last row that was sent whole."""
        return self.row if self.names == _ALL else max(0, self.row - 1)

    def delivered_to(self, row: int) -> int:
        """How many names of this row have been sent."""
        return self.names if row == self.row else 0

    def __str__(self) -> str:
        return str(self.row) if self.names == _ALL else f"{self.row}-{self.names}"


def cursor_in(text: str) -> Cursor:
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InputError(
            f"{text!r} is not a cursor", where="after", hint="Pass a cursor from an earlier answer, or `now`."
        )
    return Cursor(int(found[1])) if found[2] is None else Cursor(int(found[1]), int(found[2]))


class NamedEvent(NamedTuple):
    """One named event as it is sent. `number` counts the names of its row from 1."""

    cursor: Cursor
    number: int
    name: str
    json: bytes
    frame: bytes
    """The same for WebSockets."""


class LogEntry:
    """One row of the log, encoded once for all subscribers that share a view."""

    __slots__ = ("_named_events", "_own_name", "event", "size")

    def __init__(self, row: Row) -> None:
        self.event = read.event(row)
        self.size = len(row["data"] or "")
        self._own_name: str | None = row["external_id"]
        self._named_events: dict[str | None, list[NamedEvent]] = {}

    def named_events(self, view: View | None) -> list[NamedEvent]:
        key = None if view is None else view.name
        found = self._named_events.get(key)
        if found is None:
            found = self._named_events[key] = list(_named_events(self.event, view, self._own_name))
        return found


def _named_events(event: Event, view: View | None, own_name: str | None) -> Iterator[NamedEvent]:
    """One message per name. Its cursor includes the names of the row sent so far."""
    named = _named(event.names, view)
    fields = msgspec.to_builtins(event)
    for field in ("seq", "names"):
        del fields[field]
    if view is not None:
        fields = view.event_fields(fields, own_name)
    for place, (number, name) in enumerate(named, 1):
        cursor = Cursor(event.seq) if place == len(named) else Cursor(event.seq, number)
        json = _encode({"cursor": str(cursor), "event": name, **fields})
        yield NamedEvent(cursor, number, name, json, frame(json))


def _named(names: list[str], view: View | None) -> list[tuple[int, str]]:
    """The names to send, each with its index in the row; the first one if a view has one name for several."""
    found: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        shown_name = name if view is None else view.event_out(name)
        if shown_name is not None:
            found.setdefault(shown_name, number)
    return [(number, name) for name, number in found.items()]


class Filter(NamedTuple):
    """A subscriber's filter for one workspace, in stored names; empty means any."""

    workspace: str | None
    """None for every one."""
    tasks: frozenset[str]
    dags: frozenset[str]
    types: frozenset[str]
    names: frozenset[str]
    agents: frozenset[str]
    verbs: frozenset[str]

    def fits(self, event: Event) -> bool:
        return (
            (self.workspace is None or event.workspace_id == self.workspace)
            and (not self.tasks or event.task_id in self.tasks)
            and (not self.dags or event.dag_id in self.dags)
            and (not self.types or event.type in self.types)
            and (not self.verbs or event.verb in self.verbs)
            and (not self.agents or self._is_of_agent(event))
        )

    def _is_of_agent(self, event: Event) -> bool:
        about = (event.data or {}).get("agent")
        return event.actor.removeprefix("agent:") in self.agents or (isinstance(about, str) and about in self.agents)


class Subscription:
    """One subscriber's filters, and how far it has read."""

    def __init__(self, filter: Filter, view: View | None, cursor: Cursor) -> None:
        self.filter = filter
        self.view = view
        self.cursor = cursor

    def of(self, entries: Iterable[LogEntry]) -> list[tuple[LogEntry, list[NamedEvent]]]:
        """The events of these rows that match; the rows are after its cursor."""
        wanted, found = self.filter, []
        for entry in entries:
            if wanted.fits(entry.event):
                named_events = entry.named_events(self.view)
                if wanted.names or entry.event.seq == self.cursor.row:
                    before = self.cursor.delivered_to(entry.event.seq)
                    named_events = [
                        t for t in named_events if t.number > before and (not wanted.names or t.name in wanted.names)
                    ]
                if named_events:
                    found.append((entry, named_events))
        return found


async def subscribe(
    queue: Queue,
    requested: EventFilter,
    view: View | None,
    place: str | None,
    otherwise: Cursor | None = None,
    *,
    spans: bool = False,
) -> Subscription:
    """The caller's subscription, to all workspaces if it spans. Without a cursor it begins at `otherwise`, or now."""
    chosen = await _filter(queue, requested, view)
    if spans:
        chosen = chosen._replace(workspace=None)
    if place is not None and place != NOW:
        return Subscription(chosen, view, cursor_in(place))
    if place is None and otherwise is not None:
        return Subscription(chosen, view, otherwise)
    return Subscription(chosen, view, Cursor(await event_log.newest(queue.engine.store)))


async def _filter(queue: Queue, requested: EventFilter, view: View | None) -> Filter:
    return Filter(
        queue.workspace,
        frozenset([await _task(queue, reference) for reference in requested.task]),
        frozenset([_dag(reference) for reference in requested.dag]),
        frozenset(requested.type),
        _names(_words(requested.name), view),
        frozenset(requested.agent),
        frozenset(_words(requested.verb)),
    )


def _names(patterns: Iterable[str], view: View | None) -> frozenset[str]:
    """The names matched by patterns. An unknown name is refused: no event would ever match it."""
    known = every_name() if view is None else set(view.events_out(every_name()))
    found = {pattern: chosen(pattern, known) for pattern in patterns}
    for pattern, names in found.items():
        if not names:
            raise InputError(
                f"there is no event {pattern!r}", where="name", hint="docs/reference/events.md lists them."
            )
    return frozenset[str]().union(*found.values())


async def _task(queue: Queue, reference: str) -> str:
    """A task's id; with an id, the task need not exist yet."""
    uuid = ids.parse(reference)
    return (await queue.get(reference)).id if uuid is None else ids.show_task(uuid)


def _dag(reference: str) -> str:
    uuid = ids.parse(reference)
    if uuid is None:
        raise NotFound(f"there is no DAG {reference!r}", where="dag", dag_id=reference)
    return ids.show_dag(uuid)


def _words(texts: Iterable[str]) -> list[str]:
    """Names contain no commas, so a text may list several."""
    return [word for text in texts for word in text.split(",") if word]


def shown(entry: LogEntry, messages: list[NamedEvent]) -> Any:
    """The row as a page shows it without a view: with the names not sent yet."""
    return msgspec.structs.replace(entry.event, names=entry.event.names[messages[0].number - 1 :])
