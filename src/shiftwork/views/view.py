"""A view: a table from our names to a document's, with a pair of pure functions where values differ.

A view reads no store and decides nothing. It converts tasks as plain dicts: ours have the names of the
schema, with nested `claim`, `retry`, `spec`, `output`, `result` and `tokens_used`. Our times are seconds
since 1970; the document's are ISO 8601 in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from shiftwork.model import ids, reasons
from shiftwork.model.errors import InputError
from shiftwork.model.states import STORED, WAITING, State

Record = Mapping[str, Any]
Convert = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


class Pair(NamedTuple):
    """Converts a value to the document and back; neither gets None. `back` raises ValueError or TypeError."""

    out: Convert = same
    back: Convert = same


SAME = Pair()


class Field(NamedTuple):
    """One row of a view. Names inside an object are dotted."""

    ours: str
    theirs: str
    pair: Pair = SAME
    is_out: bool = True
    is_in: bool = True
    make: Callable[[Record], Any] | None = None


def both(ours: str, theirs: str | None = None, pair: Pair = SAME) -> Field:
    """A field that clients send and read."""
    return Field(ours, theirs or ours, pair)


def read(ours: str, theirs: str | None = None, pair: Pair = SAME) -> Field:
    """A field that only the queue writes; clients that send the document's whole record may include it."""
    return Field(ours, theirs or ours, pair, is_in=False)


def sent(ours: str, theirs: str, pair: Pair = SAME) -> Field:
    """A field that clients send, and read under another name."""
    return Field(ours, theirs, pair, is_out=False)


def made(theirs: str, make: Callable[[Record], Any]) -> Field:
    """A field computed from several of ours."""
    return Field("", theirs, is_in=False, make=make)


FIRST, LAST = -62_135_596_800.0, 253_402_300_799.0
"""The years 1 to 9999, which a date can show; times beyond are clipped to them."""


def time_out(moment: float) -> str:
    return (
        datetime.fromtimestamp(min(max(moment, FIRST), LAST), UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def time_in(text: Any) -> float:
    """Convert an ISO time with an offset to seconds since 1970; accepts a number, too, which shell scripts send."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return _within_dates(text)
    moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    if moment is None or moment.tzinfo is None:
        raise ValueError("expected an ISO 8601 time with its offset, such as 2026-02-09T12:00:00Z")
    return moment.timestamp()


def _within_dates(number: float) -> float:
    try:
        moment = float(number)  # a huge integer is not a float
        datetime.fromtimestamp(moment, UTC)
    except (OverflowError, OSError, ValueError):
        raise ValueError("expected a time before the year 10000") from None
    return moment


def plain_id(text: str) -> str:
    """The UUID in an id of ours; a caller's own name is unchanged."""
    return ids.parse(text) or text


def plain_ids(texts: Iterable[str]) -> list[str]:
    return [plain_id(text) for text in texts]


TIME = Pair(time_out, time_in)
DAG = (
    read("id"),
    read("title"),
    read("created_by"),
    read("status"),
    read("tasks"),
    read("roots"),
    read("leaves"),
    read("done"),
    read("total"),
    read("budget_ceiling_usd"),
    read("spent_usd"),
    read("created_at", "created_at", TIME),
    read("finished_at", "finished_at", TIME),
)
"""A DAG, which only one document defines; other views differ in the form of ids."""
MEMBERS = ("tasks", "roots", "leaves")
"""Fields that a DAG in a list does not have."""
WISHES = frozenset({"status", "parent_id", "dag_id", "retry_of", "attempts", "claim.agent_id"})
"""Fields that only the queue writes, but that a submitter may try to set."""
MOVING = frozenset({"effective_priority", "priority_parts", "priority_tier", "age_minutes", "version", "updated_at"})
"""Fields that change with time: a record read a moment ago has other values."""
_HINTS = {
    "status": "Cancel with POST /api/tasks/{id}/cancel; other changes follow agents' reports.",
    "parent_id": "Spawn subtasks with POST /api/tasks/{id}/spawn.",
    "dag_id": "Add tasks to a DAG with POST /api/dags/{id}/tasks.",
}
FAILURE = tuple(both(name) for name in ("reason", "error", "usage", "data", "retry", "provider", "account", "model"))
"""The fields of a failure report if the document has no names of its own for them."""
EXTRA = tuple(sent(name, name) for name in ("text", "artifacts", "decision_report", "usage", "verdict"))
"""Fields accepted with a result under our names, even if the document does not define them."""
UUID = Pair(plain_id)
UUIDS = Pair(plain_ids)


def own_id(record: Record) -> Any:
    """The submitter's own name if the document lets submitters choose one, otherwise our id."""
    return record.get("external_id") or record.get("id") or record.get("task_id")


def output_of(result: Record | None) -> Any:
    """The output of an attempt as one field: its data, or its text if it has no data."""
    data = find(result, "data")
    return find(result, "text") if data is None else data


def task_output(task: Record) -> Any:
    """The same, of a task."""
    return output_of(task.get("result"))


def failures(history: Iterable[Record]) -> list[dict[str, Any]]:
    """A failure history with readable times."""
    return [{**item, **({"at": time_out(item["at"])} if item.get("at") else {})} for item in history]


FAILURES = Pair(failures)


_BETWEEN = re.compile(r"[\s_+,/-]+")


def folded(word: str) -> str:
    """Normalize a word: `Network errors`, `network-error` and `NETWORK_ERROR` are equal."""
    return " ".join(part.removesuffix("s") for part in _BETWEEN.split(word.casefold().strip()))


def words(table: Mapping[str, str]) -> Pair:
    """A pair for a vocabulary: ours to theirs and back, in any spelling; other words are unchanged."""
    known = reversed(list(table.items()))
    back = {form: ours for ours, theirs in known for form in (folded(ours), folded(theirs))}

    def into(word: Any) -> Any:
        return back.get(folded(word), word) if isinstance(word, str) else word

    return Pair(lambda word: table.get(word, word), into)


def one_of(*known: str) -> Pair:
    """A closed list of the document's words, in any spelling."""
    forms = {folded(word): word for word in known}

    def into(word: Any) -> str:
        found = forms.get(folded(word)) if isinstance(word, str) else None
        if found is None:
            raise ValueError(f"expected one of {', '.join(known)}")
        return found

    return Pair(back=into)


def _optional(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def find(record: Any, path: str) -> Any:
    """The value at a dotted path; None if any part is missing."""
    for name in path.split("."):
        if not isinstance(record, Mapping):
            return None
        record = record.get(name)
    return record


def _put(record: dict[str, Any], path: str, value: Any) -> None:
    *groups, last = path.split(".")
    for name in groups:
        record = record.setdefault(name, {})
    record[last] = value


REASONS = words({reason: reason for reason in reasons.MEANING})
"""Our own reasons, used by documents without a list of their own."""


@dataclass(frozen=True)
class View:
    """One document's names over our data."""

    name: str
    states: Mapping[State, str]
    task: tuple[Field, ...]
    result: tuple[Field, ...]
    dead_letter: tuple[Field, ...]
    agent: tuple[Field, ...]
    breaker: tuple[Field, ...] = ()
    assignment: tuple[Field, ...] = ()
    queue: tuple[Field, ...] = ()
    purge: tuple[Field, ...] = ()
    claims: Mapping[str, str] = field(default_factory=dict)
    """The document's own names for the agent and the claim, if any."""
    events: Mapping[str, str] = field(default_factory=dict)
    only_these_events: bool = False
    ids: Pair = SAME
    names_workspaces: bool = False
    """Whether the document names a workspace when a task is created, and nowhere else."""
    own_names: bool = False
    """Whether the document lets submitters choose the ids of tasks."""
    failure: tuple[Field, ...] = FAILURE
    reasons: Pair = REASONS
    resolutions: Pair = SAME
    filters: Mapping[str, frozenset[State]] = field(default_factory=dict)
    passing: frozenset[State] = frozenset()
    required: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    agent_defaults: Mapping[str, Any] = field(default_factory=dict)
    announced: Callable[[dict[str, Any]], dict[str, Any]] = same
    """Converts a registration in which one field of the document stands for two of ours."""

    def has(self, ours: str) -> bool:
        """Whether callers may send this field of ours in the document's submission."""
        return any(row.ours == ours and row.is_in for row in self.task)

    def shows(self, ours: str) -> bool:
        """Whether the document's task has this field of ours."""
        return any(row.ours == ours and row.is_out for row in self.task)

    def place_out(self, path: str) -> str:
        """A path inside a submission, with the document's name of the field."""
        head, dot, rest = path.rpartition("]." if "]." in path else "task." if path.startswith("task.") else ".none.")
        theirs = self._theirs.get(rest)
        return path if theirs is None else f"{head}{dot}{theirs}"

    @cached_property
    def _theirs(self) -> dict[str, str]:
        """The document's names of our fields that callers send."""
        known = {row.ours: row.theirs for row in (*self.failure, *self.agent, *self.task) if row.is_in and row.ours}
        return {**known, **{ours: theirs for theirs, ours in self.claims.items()}}

    def task_out(self, task: Record) -> dict[str, Any]:
        """A task under the document's names; every field is present, null if we have no value."""
        return self._out(self.task, task)

    def task_in(self, fields: Record) -> dict[str, Any]:
        """A submission under our names. Fields that the queue itself writes are left out; unknown ones are refused.

        A `workspace_id` names the workspace to submit to; the caller removes it.
        """
        ours = self.record_in(fields)
        if not self.is_echo(fields):
            wished = ((path, value) for path, row, value in self._written(fields) if row.ours in WISHES)
            self._refuse({path: value for path, value in wished if not self._is_new(path, value)})
        return ours

    def record_in(self, fields: Record) -> dict[str, Any]:
        """The same for a record that another program stored, which has a history of its own."""
        missing = [name for name in self.required if fields.get(name) is None]
        if missing:
            raise InputError(f"The {self.name} view needs {_listed(missing)}", where=missing[0], missing=missing)
        return {**self.defaults, **self._in(self.task, fields)}

    def changes_in(self, fields: Record, now: Record | None = None) -> dict[str, Any]:
        """Changes to an existing task under our names. Fields that the queue writes must be as they are `now`."""
        shown = {} if now is None else self.task_out(now)
        wished = {
            path: value
            for path, row, value in self._written(fields)
            if row.ours not in MOVING and value != find(shown, path)
        }
        self._refuse(wished)
        if self.is_echo(fields):  # a whole record: only the differences are changes
            fields = {name: value for name, value in fields.items() if value != shown.get(name)}
        return self._in(self.task, fields)

    def is_echo(self, fields: Record) -> bool:
        """Whether this is a record read earlier and sent back: it contains its creation time."""
        return any(row.ours == "created_at" and fields.get(row.theirs) is not None for row in self.task)

    def _is_new(self, path: str, value: Any) -> bool:
        """Whether a field that the queue writes has the value of a new task."""
        if path == self._status and isinstance(value, str):
            return self.statuses_in(value) <= WAITING
        return not value or (isinstance(value, Mapping) and not any(value.values())) or (path, value) == ("attempt", 1)

    @cached_property
    def _status(self) -> str:
        return next(row.theirs for row in self.task if row.ours == "status")

    def _written(self, fields: Record) -> Iterator[tuple[str, Field, Any]]:
        """The given fields that only the queue writes, with their paths."""
        taken = {row.theirs for row in self.task if row.is_in}
        for row in self.task:
            value = find(fields, row.theirs)
            if not row.is_in and row.theirs not in taken and value is not None:
                yield row.theirs, row, value

    def _refuse(self, wished: Mapping[str, Any]) -> None:
        for path, value in wished.items():
            what = f"{path} cannot be set to {value!r}: only the queue writes it"
            raise InputError(what, where=path, hint=_HINTS.get(path, ""))

    def assignment_out(self, task: Record) -> dict[str, Any]:
        """The answer to a claim: the task, or the document's record around it, if any."""
        if not self.assignment:
            return self.task_out(task)
        return {"task": self.task_out(task), **self._out(self.assignment, task)}

    def assignments_out(self, tasks: Sequence[Record]) -> dict[str, Any]:
        """The whole answer to a claim, under a singular name for workers that claim one task, and a plural one."""
        return {self.handed: tasks[0] if tasks else None, f"{self.handed}s": tasks}

    @property
    def handed(self) -> str:
        """The document's name of what a claim returns."""
        return "assignment" if self.assignment else "task"

    def queue_out(self, status: Record) -> Record:
        """The queue's status; unchanged if the document does not define it."""
        return self._out(self.queue, status) if self.queue else status

    def purge_in(self, fields: Record) -> Record:
        """The conditions of a purge under our names."""
        return self._in(self.purge, fields) if self.purge else fields

    def result_out(self, result: Record) -> dict[str, Any]:
        return self._out(self.result, result)

    def result_in(self, fields: Record) -> dict[str, Any]:
        """An agent's result under our names."""
        return self._in((*EXTRA, *self.result), fields)

    def failure_in(self, fields: Record) -> dict[str, Any]:
        """An agent's report of a failed attempt under our names."""
        return self._in(self.failure, fields)

    def dead_letter_out(self, entry: Record) -> dict[str, Any]:
        return self._out(self.dead_letter, entry)

    def agent_out(self, agent: Record) -> dict[str, Any]:
        return self._out(self.agent, agent)

    def agent_in(self, fields: Record) -> dict[str, Any]:
        """A registration under our names."""
        return self.announced({**self.agent_defaults, **self._in(self.agent, fields)})

    def dag_out(self, dag: Record) -> dict[str, Any]:
        """A DAG, whole or as in a list."""
        shown = self._out(tuple(row for row in DAG if row.ours in dag), dag)
        many = {name: [self.ids.out(each) for each in dag[name]] for name in MEMBERS if name in dag}
        return {**shown, "id": self.ids.out(dag["id"]), **many}

    def breakers_out(self, breakers: Sequence[Record]) -> dict[str, Any]:
        """Circuit breakers by type, as in the one document that has any."""
        if not self.breaker:
            return {"breakers": breakers}
        return {"circuitBreakers": {found["type"]: self._out(self.breaker, found) for found in breakers}}

    def status_out(self, state: State | str) -> str:
        return self.states[State(state)]

    def statuses_in(self, status: str) -> frozenset[State]:
        """Our states for one of the document's, in upper or lower case."""
        found = self._states_of.get(folded(status))
        if found is None:
            known = _listed(dict.fromkeys([*self.states.values(), *self.filters]))
            raise InputError(f"The {self.name} view has no status {status!r}", where="status", hint=f"Use {known}.")
        return found

    def history_out(self, path: Sequence[State]) -> list[str]:
        """A path of states in the document's names; states that it does not have are skipped."""
        kept = [s for i, s in enumerate(path) if s not in self.passing or i == len(path) - 1]
        shown = [self.status_out(s) for s in kept]
        return [word for i, word in enumerate(shown) if i == 0 or word != shown[i - 1]]

    def transitions_out(self, steps: Iterable[Record]) -> list[dict[str, Any]]:
        """The transitions between the document's states, without those between states that it does not distinguish."""
        shown = []
        for _, taken in groupby(steps, key=lambda step: step["seq"]):
            at_once = list(taken)
            first = at_once[0]
            path = [State(first["from_status"]), *(State(step["to_status"]) for step in at_once)]
            for before, after in pairwise(self.history_out(path)):
                reason = _optional(self.reason_out, first["reason"])
                shown.append({"from": before, "to": after, "at": time_out(first["at"]), "reason": reason})
                shown[-1]["actor"] = first["actor"]
        return shown

    def event_out(self, name: str) -> str | None:
        """The document's name of an event; None if it has no such event."""
        return self.events.get(name, None if self.only_these_events else name)

    def events_out(self, names: Iterable[str]) -> list[str]:
        """The document's names of the events of one row; a name that stands for several is listed once."""
        return list(dict.fromkeys(shown_name for name in names if (shown_name := self.event_out(name)) is not None))

    def event_fields(self, event: Record, own_name: str | None = None) -> dict[str, Any]:
        """An event's own fields, with ids, time, states and failure reason in the document's form."""
        ours = {name: _optional(self.ids.out, event[name]) for name in ("task_id", "dag_id")}
        if self.own_names and own_name is not None:
            ours["task_id"] = self.ids.out(own_name)
        path = self.history_out([State(state) for state in event["path"]])
        failed = event["verb"] == "failed" and event["reason"] is not None
        reason = self.reason_out(event["reason"]) if failed else event["reason"]
        return {**event, **ours, "at": time_out(event["at"]), "path": path, "reason": reason}

    def reason_out(self, reason: str) -> str:
        return str(self.reasons.out(reason))

    def reason_in(self, reason: str) -> str:
        return str(self.reasons.back(reason))

    def resolution_in(self, word: str) -> str:
        return str(self.resolutions.back(word))

    @cached_property
    def _states_of(self) -> dict[str, frozenset[State]]:
        words = dict.fromkeys(self.states.values())
        found = {folded(w): frozenset(s for s in STORED if self.states[s] == w) for w in words}
        # The name of a state that is never stored (CREATED) is known, but matches no state.
        return {**found, **{folded(w): states for w, states in self.filters.items()}}

    @staticmethod
    def _out(table: tuple[Field, ...], record: Record) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for row in table:
            if row.is_out:
                value = row.make(record) if row.make else find(record, row.ours)
                _put(shown, row.theirs, _optional(row.pair.out, value))
        return shown

    def _in(self, table: tuple[Field, ...], fields: Record) -> dict[str, Any]:
        rows: dict[str, Field] = {}
        for row in table:
            if row.is_in or row.theirs not in rows:
                rows[row.theirs] = row
        taken: dict[str, Any] = {}
        unknown: list[str] = []
        self._take(rows, fields, "", taken, unknown)
        if unknown:
            known = _listed(name for name, row in rows.items() if row.is_in)
            raise InputError(
                f"The {self.name} view has no field {_listed(unknown)}",
                where=unknown[0],
                hint=f"It takes {known}.",
                unknown=unknown,
            )
        return taken

    def _take(
        self, rows: dict[str, Field], fields: Record, prefix: str, taken: dict[str, Any], unknown: list[str]
    ) -> None:
        for name, value in fields.items():
            path = f"{prefix}{name}"
            if (row := rows.get(path)) is not None:
                if row.is_in:
                    _put(taken, row.ours, _converted(row, value))
            elif not any(known.startswith(path + ".") for known in rows):
                unknown.append(path)
            elif isinstance(value, Mapping):
                self._take(rows, value, path + ".", taken, unknown)
            elif value is not None:
                raise InputError("Expected an object", where=path)


def _converted(row: Field, value: Any) -> Any:
    try:
        return _optional(row.pair.back, value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{row.theirs} is {value!r}: {error}", where=row.theirs) from None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
