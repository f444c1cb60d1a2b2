"""The parameters of an operation, read from its signature: checked once, split into path, query and body."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from shiftwork.model import check, times
from shiftwork.model.errors import InputError
from shiftwork.model.outcome import Token
from shiftwork.model.task import Fields, Name

TOKEN = "token"  # noqa: S105  # the name of a parameter
TASK = "task_id"
MAX_BATCH = 1000
"""Items that one HTTP call may carry."""

SOMETHING = msgspec.Meta(extra_json_schema={"minProperties": 1})
"""The schema rule of a body that needs at least one of its optional fields."""


class Accepts:
    """In `Annotated[NewTask | Mapping[str, Any], Accepts(NewTask)]`: the type that the value is read as.

    `over_http` is its type in a request, if that differs. With `Any` the implementation checks the value.
    """

    def __init__(self, kind: Any, *, over_http: Any = None) -> None:
        self.kind = kind
        self.over_http = kind if over_http is None else over_http


ClaimToken = Annotated[str | Token, Accepts(Any, over_http=Name)]
"""The token of a claim: as text, or parsed, as a worker in this process holds it. `call.token` checks it."""


class ClaimRef(Fields):
    """The claim that a write is made under: its token, or its fence. Views of some documents need neither."""

    token: Name | None = None
    fence: Annotated[int, msgspec.Meta(ge=0)] | None = None
    agent_id: Name | None = None
    runtime_id: Name | None = None


CLAIM_FIELDS = frozenset(ClaimRef.__struct_fields__)


class Parameters:
    """The parameters of an operation."""

    def __init__(
        self,
        operation: str,
        method: Callable[..., Coroutine[Any, Any, Any]],
        path_names: tuple[str, ...],
        body: str | None,
        rename: Mapping[str, str],
        *,
        in_query: bool,
        batch: str | None = None,
    ) -> None:
        hints = get_type_hints(method, include_extras=True)
        self.answer = None if hints["return"] is type(None) else hints["return"]
        signature = list(inspect.signature(method).parameters.values())[1:]
        self.names = tuple(parameter.name for parameter in signature)
        self.required = tuple(p.name for p in signature if p.default is p.empty)
        self.rename = dict(rename)
        self.path_names = path_names
        self.body_name = body
        kinds = self.kinds = {name: read_as(hints[name]) for name in self.names}
        self.timed = frozenset(name for name in self.names if _is_timed(hints[name]))
        """Times and durations."""
        fields = [_field(parameter, kinds[parameter.name]) for parameter in signature]
        title = "".join(word.capitalize() for word in operation.replace(".", "_").split("_"))
        self.struct: type[msgspec.Struct] = _struct(f"{title}Parameters", fields, {})
        """All of them, under their Python names."""
        self._unread = frozenset(name for name in self.names if kinds[name] in (Any, list[Any]))
        """Those that the implementation checks itself."""
        self._texts = tuple(name for name in self.names if _is_text(kinds[name]))
        self.under_claim = TOKEN in self.names and TASK in path_names and TASK not in self.names
        sent = [_field(parameter, read_as(hints[parameter.name], over_http=True)) for parameter in signature]
        self.sent: dict[str, Any] = {field[0]: field for field in sent}
        """Name, type and default of each in a request, for interfaces that take JSON."""
        rest = [field for field in sent if field[0] not in path_names]
        if self.under_claim:
            rest = [field for field in rest if field[0] != TOKEN]
        self.body: Any = None
        self.query: list[Any] = []
        if in_query:
            self.query = rest
        elif body is not None:
            self.body = kinds[body]
            self.query = [field for field in rest if field[0] != body]
        elif rest or self.under_claim:
            base = ClaimRef if self.under_claim else Fields
            bounded = [_bounded(field) if field[0] == batch else field for field in rest]
            self.body = _struct(f"{title}Body", bounded, self.rename, base)

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The caller's values, checked, with defaults for the rest. An unknown name is a TypeError."""
        for name in values:
            if name not in self.names:
                raise TypeError(f"unexpected argument {name!r}; expected {', '.join(self.names)}")
        for name in self.required:
            if name not in values:
                raise TypeError(f"missing argument {name!r}")
        given = {
            name: value if name in self._unread else self._number(_plain(value, name), name)
            for name, value in values.items()
            if value is not msgspec.UNSET
        }
        try:
            checked = msgspec.convert(given, self.struct)
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at ")
            place = path.strip("`").removeprefix("$").lstrip(".")
            raise InputError(what, where=place or None, hint=self._allowed(place) or times.hint(what)) from None
        fields = msgspec.structs.asdict(checked)
        for name in self._texts:
            if isinstance(fields[name], str):
                check.text(fields[name], name)
        return fields

    def numbers(self, values: dict[str, Any]) -> dict[str, Any]:
        """The same values, with times and durations as numbers: a request may have an ISO 8601 text for a time."""
        return {name: self._number(value, name) for name, value in values.items()} if self.timed else values

    def _number(self, value: Any, name: str) -> Any:
        return times.number(value, name) if name in self.timed else value

    def _allowed(self, name: str) -> str | None:
        """A hint that lists the values of a parameter, if there are few."""
        kind = self.kinds.get(name)
        words = [word for part in (kind, *get_args(kind)) if get_origin(part) is Literal for word in get_args(part)]
        return f"Use one of {', '.join(map(str, words))}." if words else None

    @property
    def body_needs_a_field(self) -> bool:
        """Whether the body needs at least one of its optional fields: it describes a change."""
        if self.body is None or self.body_name is not None:
            return False
        return all(field.default is msgspec.UNSET for field in msgspec.structs.fields(self.body))

    def http_name(self, name: str) -> str:
        return self.rename.get(name, name)


def read_as(hint: Any, *, over_http: bool = False) -> Any:
    """The type that a value is converted to: that of `Accepts`, wherever it is in the hint."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *notes = get_args(hint)
        found = next((note for note in notes if isinstance(note, Accepts)), None)
        if found is not None:
            return found.over_http if over_http else found.kind
        return Annotated[(read_as(inner, over_http=over_http), *notes)]
    if origin in {Union, types.UnionType}:
        parts = [part for part in get_args(hint) if not _is_converted(part, over_http=over_http)]
        return functools.reduce(operator.or_, [read_as(each, over_http=over_http) for each in parts])
    if origin is Sequence:
        return list[read_as(get_args(hint)[0], over_http=over_http)]  # type: ignore[misc]  # made from parts
    if origin is Mapping:
        return dict[get_args(hint)]  # type: ignore[misc]  # made from parts
    return hint


def _is_converted(part: Any, *, over_http: bool) -> bool:
    """Whether it is a number once it is checked. Durations in a request are numbers; times may be texts."""
    kind = get_args(part)[0] if get_origin(part) is Annotated else part
    return kind is timedelta or (kind is datetime and not over_http)


def _is_timed(hint: Any) -> bool:
    """Whether a time or a duration may be given."""
    if get_origin(hint) is Annotated:
        return _is_timed(get_args(hint)[0])
    return hint in (datetime, timedelta) or (
        get_origin(hint) in {Union, types.UnionType} and any(map(_is_timed, get_args(hint)))
    )


def _words(kind: Any) -> Iterator[str]:
    for part in get_args(kind):
        if isinstance(part, str):
            yield part
        else:
            yield from _words(part)


def _field(parameter: inspect.Parameter, kind: Any) -> Any:
    if parameter.default is parameter.empty:
        return (parameter.name, kind)
    default = parameter.default
    return (parameter.name, kind, list(default) if isinstance(default, tuple) else default)


def _bounded(field: Any) -> Any:
    return (field[0], Annotated[field[1], msgspec.Meta(max_length=MAX_BATCH)], *field[2:])


def _struct(name: str, fields: Any, rename: Mapping[str, str], base: type[msgspec.Struct] = Fields) -> Any:
    return msgspec.defstruct(name, fields, bases=(base,), kw_only=True, rename=dict(rename) or None)


def _is_text(kind: Any) -> bool:
    parts = get_args(kind) if get_origin(kind) in {Union, types.UnionType} else (kind,)
    return any(part is str or (get_origin(part) is Annotated and get_args(part)[0] is str) for part in parts)


def _plain(value: Any, where: str) -> Any:
    """Convert a struct again: its constructor checks nothing."""
    if isinstance(value, msgspec.Struct):
        return check.plain(value, where)
    if isinstance(value, list | tuple) and any(isinstance(item, msgspec.Struct) for item in value):
        return [check.plain(item, where) if isinstance(item, msgspec.Struct) else item for item in value]
    return value
