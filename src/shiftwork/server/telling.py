"""What a subscriber is told: which events it wants, under which names, and from where it goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from shiftwork.core import ids
from shiftwork.core.errors import InputError, NotFound
from shiftwork.core.events import chosen, every_name
from shiftwork.core.task import Name
from shiftwork.queue import read
from shiftwork.queue.queue import Queue
from shiftwork.queue.read import Event
from shiftwork.server.door import ViewQuery
from shiftwork.server.sockets import frame
from shiftwork.store.store import Row
from shiftwork.views.view import View

NOW = "now"
_CURSOR = re.compile(r"(\d{1,18})(?:-(\d{1,4}))?")
_ALL = 10_000
_encode = msgspec.json.Encoder().encode

Place = Annotated[str, Meta(pattern=rf"^({NOW}|{_CURSOR.pattern})$")]
"""A cursor as it was told, or `now` for whatever happens from now on."""


Words = Annotated[list[Name], Meta(max_length=100)]


class Wanted(ViewQuery):
    """Which events. Of several words for one field any may fit; of several fields all must."""

    task: Words = []
    """Tasks by their ids, or by the names their submitters gave them."""
    dag: Words = []
    type: Words = []
    """Types of task."""
    name: Words = []
    """Names of events, as the view has them; `task.*` means all that begin so."""
    agent: Words = []
    """Events that these agents caused, or that are about them."""
    verb: Words = []


class Cursor(NamedTuple):
    """How far somebody has been told: every row of the log up to `row`, or of that row only the first `names`."""

    row: int
    names: int = _ALL

    @property
    def after(self) -> int:
        """The last row that has been told whole."""
        return self.row if self.names == _ALL else max(0, self.row - 1)

    def told_of(self, row: int) -> int:
        """How many names of a row behind `after` have been told."""
        return self.names if row == self.row else 0

    def __str__(self) -> str:
        return str(self.row) if self.names == _ALL else f"{self.row}-{self.names}"


def cursor_in(text: str) -> Cursor:
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is no cursor", where="after", mend="Give a cursor as it was told, or `now`.")
    return Cursor(int(found[1])) if found[2] is None else Cursor(int(found[1]), int(found[2]))


class Told(NamedTuple):
    """One named event as it is sent. `number` counts the names of its row from 1."""

    cursor: Cursor
    number: int
    name: str
    json: bytes
    frame: bytes
    """The same for WebSockets."""


class Entry:
    """One row of the log. What is sent of it is written once for all who share a view."""

    __slots__ = ("_own_name", "_told", "event", "size")

    def __init__(self, row: Row) -> None:
        self.event = read.event(row)
        self.size = len(row["data"] or "")
        self._own_name: str | None = row["external_id"]
        self._told: dict[str | None, list[Told]] = {}

    def told(self, view: View | None) -> list[Told]:
        key = None if view is None else view.name
        found = self._told.get(key)
        if found is None:
            found = self._told[key] = list(_tell(self.event, view, self._own_name))
        return found


def _tell(event: Event, view: View | None, own_name: str | None) -> Iterator[Told]:
    """A message for each name. Its cursor says how much of the row has been told with it."""
    named = _named(event.names, view)
    fields = msgspec.to_builtins(event)
    for field in ("seq", "names"):
        del fields[field]
    if view is not None:
        fields = view.event_fields(fields, own_name)
    for place, (number, name) in enumerate(named, 1):
        cursor = Cursor(event.seq) if place == len(named) else Cursor(event.seq, number)
        json = _encode({"cursor": str(cursor), "event": name, **fields})
        yield Told(cursor, number, name, json, frame(json))


def _named(names: list[str], view: View | None) -> list[tuple[int, str]]:
    """The names told, each with its number among all names of the row: the first where a view has one for several."""
    found: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        told = name if view is None else view.event_out(name)
        if told is not None:
            found.setdefault(told, number)
    return [(number, name) for name, number in found.items()]


class Filter(NamedTuple):
    """Which events of one workspace a subscriber wants, in the words they are stored with; empty means any."""

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
    """What one subscriber wants, and how far it has been told."""

    def __init__(self, wanted: Filter, view: View | None, cursor: Cursor) -> None:
        self.wanted = wanted
        self.view = view
        self.cursor = cursor

    def of(self, entries: Iterable[Entry]) -> list[tuple[Entry, list[Told]]]:
        """What it is told of these rows, which stand behind its cursor."""
        wanted, found = self.wanted, []
        for entry in entries:
            if wanted.fits(entry.event):
                told = entry.told(self.view)
                if wanted.names or entry.event.seq == self.cursor.row:
                    before = self.cursor.told_of(entry.event.seq)
                    told = [t for t in told if t.number > before and (not wanted.names or t.name in wanted.names)]
                if told:
                    found.append((entry, told))
        return found


async def subscription(
    queue: Queue,
    wanted: Wanted,
    view: View | None,
    place: str | None,
    otherwise: Cursor | None = None,
    *,
    spans: bool = False,
) -> Subscription:
    """What a caller asks for, of all workspaces if it spans. Without a place it begins at `otherwise`, or else now."""
    chosen = await _filter(queue, wanted, view)
    if spans:
        chosen = chosen._replace(workspace=None)
    if place is not None and place != NOW:
        return Subscription(chosen, view, cursor_in(place))
    if place is None and otherwise is not None:
        return Subscription(chosen, view, otherwise)
    return Subscription(chosen, view, Cursor(await queue.newest_event()))


async def _filter(queue: Queue, wanted: Wanted, view: View | None) -> Filter:
    return Filter(
        queue.workspace,
        frozenset([await _task(queue, reference) for reference in wanted.task]),
        frozenset([_dag(reference) for reference in wanted.dag]),
        frozenset(wanted.type),
        _names(_words(wanted.name), view),
        frozenset(wanted.agent),
        frozenset(_words(wanted.verb)),
    )


def _names(patterns: Iterable[str], view: View | None) -> frozenset[str]:
    """The names that are meant. One that nothing is told under would be waited for in vain."""
    known = every_name() if view is None else set(view.events_out(every_name()))
    found = {pattern: chosen(pattern, known) for pattern in patterns}
    for pattern, names in found.items():
        if not names:
            raise InputError(
                f"there is no event {pattern!r}", where="name", mend="docs/reference/events.md lists them."
            )
    return frozenset[str]().union(*found.values())


async def _task(queue: Queue, reference: str) -> str:
    """Its id; a task that has one need not be there yet."""
    uuid = ids.parse(reference)
    return (await queue.get(reference)).id if uuid is None else ids.show_task(uuid)


def _dag(reference: str) -> str:
    uuid = ids.parse(reference)
    if uuid is None:
        raise NotFound(f"there is no DAG {reference!r}", where="dag", dag_id=reference)
    return ids.show_dag(uuid)


def _words(given: Iterable[str]) -> list[str]:
    """Our own words hold no commas, so several may stand in one text."""
    return [word for text in given for word in text.split(",") if word]


def shown(entry: Entry, told: list[Told]) -> Any:
    """The row as a page shows it where there is no view: with the names that have not been told yet."""
    return msgspec.structs.replace(entry.event, names=entry.event.names[told[0].number - 1 :])
