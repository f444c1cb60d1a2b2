"""A tool over an operation: name, scope, parameters, hints and description are derived from its declaration.

    @tool(Everyday.cancel, "submitter", takes={"task_id": TASK_ID, "reason": None}, destroys=True)
    async def cancel(call: ToolCall) -> Changed: ...

`takes` names the parameters that a model gets, each with a sentence about it. Types, bounds and defaults are those of
the operation. A docstring of the handler replaces the operation's own sentence if a model needs other words.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from shiftwork.mcp.roles import Role
from shiftwork.model.task import Fields
from shiftwork.operation.declare import Operation, operation_of
from shiftwork.operation.parameters import read_as

if TYPE_CHECKING:
    from shiftwork.mcp.mcp_session import McpSession
    from shiftwork.operation.interface import AnyQueue

MAX_WAIT_SEC = 20.0
"""The longest wait of a call: it is then answered within 25 s in total."""

WaitSec = Annotated[float, Meta(ge=0, le=MAX_WAIT_SEC)]
_SAME: Any = inspect.Parameter.empty


class Parameter(NamedTuple):
    """A tool's description of a parameter; `kind` is only needed if the operation has no such parameter."""

    description: str | None = None
    kind: Any = _SAME
    default: Any = _SAME
    required: bool = False


Takes = Mapping[str, str | Parameter | None]


class ToolCall:
    """One call of a tool: the caller and the arguments, by the operation's names."""

    __slots__ = ("session", "tool", "values")

    def __init__(self, session: McpSession, tool: Tool, values: dict[str, Any]) -> None:
        self.session = session
        self.tool = tool
        self.values = values

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    async def run(self, queue: AnyQueue, **more: Any) -> Any:
        """Run the operation with those arguments of the call that it takes, and with `more`."""
        known = self.tool.operation.parameters.names
        arguments = {name: value for name, value in self.values.items() if name in known}
        return await self.tool.verb(queue, **{**arguments, **more})


Handler = Callable[[ToolCall], Awaitable[msgspec.Struct]]


class Tool(NamedTuple):
    """One tool: its operation, its role, its arguments and its result."""

    verb: Callable[..., Awaitable[Any]]
    """The operation's method; the queue to run it on is passed with each call."""
    operation: Operation
    name: str
    description: str
    handler: Handler
    roles: frozenset[str]
    takes: type[msgspec.Struct]
    gives: type[msgspec.Struct]
    destroys: bool
    idempotent: bool
    """Whether a repeat changes nothing more."""

    @property
    def scope(self) -> str:
        return self.operation.scope or "read"

    @property
    def reads(self) -> bool:
        return not self.operation.changes

    def is_for(self, role: Role) -> bool:
        return role == "all" or role in self.roles


class Tools:
    """The tools of one side, in the order of their declaration."""

    def __init__(self) -> None:
        self.all: list[Tool] = []

    def __call__(
        self,
        verb: Callable[..., Awaitable[Any]],
        *roles: Role,
        takes: Takes,
        name: str | None = None,
        destroys: bool = False,
        idempotent: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated coroutine as a tool over this operation."""
        operation = operation_of(verb)

        def declare(handler: Handler) -> Handler:
            called = name or operation.name.rpartition(".")[2]
            title = "".join(word.capitalize() for word in called.split("_"))
            self.all.append(
                Tool(
                    verb=verb,
                    operation=operation,
                    name=called,
                    description=inspect.cleandoc(handler.__doc__ or f"{operation.summary}."),
                    handler=handler,
                    roles=frozenset(roles),
                    takes=struct_of(f"{title}Arguments", operation.parameters.sent, takes, operation.parameters.rename),
                    gives=inspect.get_annotations(handler, eval_str=True)["return"],
                    destroys=destroys,
                    idempotent=idempotent or not operation.changes or operation.key == "never",
                )
            )
            return handler

        return declare


def struct_of(title: str, known: Mapping[str, Any], takes: Takes, rename: Mapping[str, str]) -> type[msgspec.Struct]:
    """The arguments of a tool as a struct: fields of an operation or a record, each with its description."""
    fields = [_field(name, known.get(name), _as_parameter(note)) for name, note in takes.items()]
    renamed = {name: other for name, other in rename.items() if name in takes}
    made: type[msgspec.Struct] = msgspec.defstruct(title, fields, bases=(Fields,), kw_only=True, rename=renamed or None)
    return made


def fields_of(record: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of a record that callers write, as `struct_of` reads them."""
    return {field.name: _declared(field) for field in msgspec.structs.fields(record)}


def _declared(field: msgspec.structs.FieldInfo) -> Any:
    kind = read_as(field.type, over_http=True)
    if field.required:
        return (field.name, kind)
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return (field.name, kind, default)


def _as_parameter(note: str | Parameter | None) -> Parameter:
    return note if isinstance(note, Parameter) else Parameter(note)


def _field(name: str, known: Any, wanted: Parameter) -> Any:
    kind = known[1] if wanted.kind is _SAME else wanted.kind
    if wanted.description is not None:
        kind = Annotated[kind, msgspec.Meta(description=wanted.description)]
    default = known[2:] if wanted.default is _SAME and known is not None else (wanted.default,)
    return (name, kind) if wanted.required or default == (_SAME,) else (name, kind, *default)


def values_of(arguments: msgspec.Struct) -> dict[str, Any]:
    """The arguments by their Python names."""
    return msgspec.structs.asdict(arguments)


@functools.cache
def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a record with an object at its root, as the protocol requires, without needless keywords."""
    whole = msgspec.json.schema(kind, ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = whole["$defs"]
    root = definitions.pop(kind.__name__)
    rest = {"$defs": definitions} if definitions else {}
    plain: dict[str, Any] = _plain({**root, **rest})
    return plain


def _plain(value: Any) -> Any:
    """Remove what is useless to a model: class names, and null for optional fields."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    left = {key: each for key, each in value.items() if not _is_needless(value, key)}
    kinds = [each for each in left.get("anyOf", []) if each != {"type": "null"}]
    if len(kinds) == 1:
        del left["anyOf"]
        left = {**kinds[0], **left}
    return {key: _plain(each) for key, each in left.items()}


def _is_needless(schema: dict[str, Any], key: str) -> bool:
    """Whether this is a needless keyword of a schema, not a property with the same name."""
    named = key == "title" and isinstance(schema[key], str)
    return named or (key == "default" and schema[key] in (None, [], {})) or (key == "required" and schema[key] == [])


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    return {each.name: each for each in tools}
