"""Renders the answer of any operation in a document's names.

Records for which the document has a table of its own are converted by it. All others keep our field names, with the
document's times, task ids and states; content written by submitters is never changed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from shiftwork.agents.model import Agent
from shiftwork.dags.model import DagSummary
from shiftwork.dead_letters.model import DeadLetter
from shiftwork.engine.assignment import Input
from shiftwork.model import ids
from shiftwork.model.errors import InputError, ShiftworkError
from shiftwork.model.history import Attempt, Transition
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import State
from shiftwork.model.task import Dag, Result, Submitted, Task
from shiftwork.observe.model import Explanation
from shiftwork.views.view import SAME, View, time_in, time_out
from shiftwork.waits.model import WaitResult
from shiftwork.wire import problem
from shiftwork.wire.problem import Problem
from shiftwork.wire.shapes import OutcomeReply

if TYPE_CHECKING:
    from shiftwork.queue import Queue

RECORDS: dict[type, Callable[[View, Any], dict[str, Any]]] = {
    Task: View.task_out,
    Result: View.result_out,
    DeadLetter: View.dead_letter_out,
    Agent: View.agent_out,
    Dag: View.dag_out,
    DagSummary: View.dag_out,
}
"""The records that every document defines."""

STATED: dict[type, tuple[str, ...]] = {
    Outcome: ("status",),
    OutcomeReply: ("status",),
    Submitted: ("status",),
    Explanation: ("status",),
    WaitResult: ("status",),
    Input: ("status",),
    Transition: ("from_status", "to_status"),
}
"""Fields that contain the state of a task."""

REASONED: tuple[type, ...] = (Attempt,)
"""Records whose `reason` is a failure reason."""

WRITTEN = frozenset({"payload", "spec", "output", "result", "value", "schema", "evidence", "progress", "rule"}) | {
    *("data", "text", "labels", "parameters", "priority_parts", "change", "token", "assignment_id")
}
"""Fields that are returned unchanged: their content is a submitter's or an agent's, or a claim."""

OURS = frozenset({"Alert.data", "Outcome.data", "OutcomeReply.data", "Cost.value", "Pattern.value"})
"""Fields of the same names whose content is ours."""

TEMPLATES = frozenset({"Trigger.task", "Trigger.dag", "Preview.task", "Preview.dag"})

MOMENTS = frozenset({"at", "until", "since", "deadline", "now", "last_failure", "last_heartbeat", "last_seen"}) | {
    *("execution_deadline", "ack_required_by", "closed_until", "rests_until")
}
TIMETABLES = frozenset({"Preview.next"})
"""Lists of times; in other records, the name means something else."""
_COUNTED = frozenset(State) | {"done", "total"}
_ID = re.compile(r"\b(?:task|dag)_[0-7][0-9A-HJKMNP-TV-Z]{25}\b(?!\.\d)")
"""An id of ours in a text, except inside a claim's token."""


def is_moment(name: str) -> bool:
    """Whether a number of this name is a time."""
    return name in MOMENTS or name.endswith("_at")


class Names:
    """A view's names of tasks: the submitters' own names, if the document lets submitters choose them."""

    def __init__(self, view: View, own: Mapping[str, str]) -> None:
        self._view = view
        self._own = own

    def of(self, task_id: str) -> str:
        return str(self._own.get(task_id) or self._view.ids.out(task_id))

    def within(self, text: str) -> str:
        return _ID.sub(lambda found: self.of(found[0]), text) if "_" in text else text


async def names_in(answer: Any, view: View, queue: Queue) -> Names:
    """The names of all tasks that an answer mentions."""
    if not view.own_names:
        return Names(view, {})
    found = {each for text in _texts(answer) for each in _ID.findall(text) if each.startswith("task_")}
    items = [(uuid,) for uuid in map(ids.parse, sorted(found)) if uuid is not None]
    rows = await queue.engine.store.read(lambda tx: tx.all("own_names", items=items)) if items else []
    return Names(view, {ids.show_task(row["id"]): row["external_id"] for row in rows})


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, msgspec.Struct):
        yield from _texts(msgspec.to_builtins(value))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield str(name)
            if name not in _UNSEARCHED:
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


_UNSEARCHED = frozenset({"id", "payload", "spec", "result", "output"})
"""Not searched: a whole task already has its name, and its content does not refer to others."""


async def in_view(answer: Any, view: View, queue: Queue) -> Any:
    """Render a handler's answer in the document's form."""
    if isinstance(answer, dict | list) and view.ids == SAME and not view.own_names:
        return answer  # the view has already rendered it, and uses our ids
    return _Rendering(view, await names_in(answer, view, queue)).of(answer)


class _Rendering:
    """The rendering of one answer."""

    def __init__(self, view: View, names: Names) -> None:
        self._view = view
        self._names = names

    def of(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str):
            return self._names.within(value)
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int | float):
            return time_out(value) if is_moment(name) else value
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple | set | frozenset):
            return [self.of(each, name) for each in value]
        return self._record(value) if isinstance(value, msgspec.Struct) else value

    def _mapping(self, value: Mapping[str, Any]) -> dict[str, Any]:
        if value and _COUNTED.issuperset(value):
            return self._counts(value)
        return {
            self._names.within(name): inner if name in WRITTEN else self.of(inner, name)
            for name, inner in value.items()
        }

    def _counts(self, value: Mapping[str, int]) -> dict[str, int]:
        """Counts by state, summed for states that the document does not distinguish."""
        counts: dict[str, int] = {}
        for name, count in value.items():
            word = self._view.status_out(name) if name in frozenset(State) else name
            counts[word] = counts.get(word, 0) + count
        return counts

    def _record(self, value: msgspec.Struct) -> Any:
        kind = type(value)
        if kind in RECORDS:
            return RECORDS[kind](self._view, msgspec.to_builtins(value))
        shown: dict[str, Any] = {}
        for field, default in _fields(kind):
            inner = getattr(value, field)
            if default is not _NEVER and inner == default:
                continue
            shown[field] = self._field(kind, field, inner)
        return shown

    def _field(self, kind: type, field: str, value: Any) -> Any:
        place = f"{kind.__name__}.{field}"
        if value is None or place in TEMPLATES or (field in WRITTEN and place not in OURS):
            return value
        if field in STATED.get(kind, ()):
            return self._view.status_out(value)
        if field == "reason" and kind in REASONED:
            return self._view.reason_out(value)
        if place in TIMETABLES:
            return [time_out(each) for each in value]
        if isinstance(value, ShiftworkError):
            value = problem.of(value)
        if isinstance(value, Problem):
            return problem_in(value, self._view, self._names)
        return self.of(value, field)


_NEVER = object()


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """The fields of a record, each with the default at which it is omitted."""
    leaves_out = kind.__struct_config__.omit_defaults
    known = []
    for field in msgspec.structs.fields(kind):
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        known.append((field.name, default if leaves_out and default is not msgspec.NODEFAULT else _NEVER))
    return tuple(known)


class LogFilter(logging.Filter):
    """Replaces task ids in log records by the names of the server's own view."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self._names = Names(view, {})

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(self._names.within(each) if isinstance(each, str) else each for each in record.args)
        return True


def problem_in(body: Problem, view: View, names: Names) -> Problem:
    """Convert a problem to the caller's names of tasks and fields."""
    where = None if body.where is None else view.place_out(body.where)
    return msgspec.structs.replace(
        body,
        detail=_FIELD.sub(lambda named: f"`{view.place_out(named[1])}`", names.within(body.detail)),
        hint=names.within(body.hint),
        where=where,
        facts=_Rendering(view, names).of(body.facts),
    )


_FIELD = re.compile(r"`([a-z_.]+)`")


def moments_in(values: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Convert the times of a document to seconds since 1970."""
    named = _moments(kind)
    return {name: _moment(value, name) if name in named else value for name, value in values.items()}


def _moment(value: Any, name: str) -> Any:
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    try:
        return time_in(value)
    except ValueError as error:
        raise InputError(f"{value!r}: {error}", where=name) from None


_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")


def has_moments(kind: Any) -> bool:
    return bool(_moments(kind))


@cache
def _moments(kind: Any) -> frozenset[str]:
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return frozenset()
    fields = msgspec.structs.fields(kind)
    return frozenset(field.encode_name for field in fields if is_moment(field.name) and "float" in str(field.type))
