"""Declares an operation on a typed method of a namespace.

    class Breakers(Namespace, name="breakers", group="Protection"):
        @operation("POST /api/breakers/{type}/reset", "operate")
        async def reset(self, type: Name) -> Breaker:
            \"\"\"Close a breaker and clear its failure count.\"\"\"

The method has no body: a call goes to the executor that the namespace was built with. Route, access check, OpenAPI,
HTTP client and default command are derived from the declaration, as are the parameters and texts of an MCP tool if
`mcp/` lists one; `implements` in the feature's `operations.py` registers the implementation. Modules with declarations
import models only, so that a client loads no engine.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack

import msgspec

from shiftwork.model.errors import ShiftworkError
from shiftwork.operation.parameters import Parameters

if TYPE_CHECKING:
    from shiftwork.artifacts.model import Artifact
    from shiftwork.artifacts.spool import Upload

P = ParamSpec("P")
T = TypeVar("T")
Scope = Literal["read", "submit", "work", "operate", "admin", "server"]
IdempotencyKey = Literal["never", "always", "with_usage"]


class Raw:
    """A request body or an answer that is a stream of bytes."""


class PlainText:
    """An answer in plain text."""


class Options(TypedDict, total=False):
    """Options of a declaration besides its route and scope."""

    body: str
    """The parameter that is the whole request body; by default, the body is an object of all parameters not in the
    path."""
    envelope: str
    """The one field of the JSON object around an answer that is a list, a flag or a number."""
    status: int
    errors: tuple[type[ShiftworkError], ...]
    """Errors it can raise, besides those of every operation."""
    key: IdempotencyKey
    """When a client sends an Idempotency-Key with a change: never, if the operation is naturally idempotent."""
    batch: str
    """The parameter that a client splits if it holds more than one call may carry."""
    long_poll: str
    """The parameter for how long the server may wait before it answers."""
    rename: Mapping[str, str]
    """Parameters whose names differ over HTTP."""
    answer: Any
    """The type of the answer, if it is not that of the method."""
    group: str
    """The heading in the documentation, if it is not that of the namespace."""
    raw_body: bool
    """Whether the request body is a stream of bytes; a handler written by hand reads it."""


class Operation:
    """One operation of the queue, as all interfaces use it."""

    def __init__(
        self,
        method: Callable[..., Coroutine[Any, Any, Any]],
        route: str,
        scope: Scope | None,
        **options: Unpack[Options],
    ) -> None:
        self.method = method
        self.http_method, _, self.path = route.partition(" ")
        self.path_names = tuple(re.findall(r"{(\w+)}", self.path))
        self.scope = scope
        """The scope a caller needs; None allows everyone."""
        self.envelope = options.get("envelope")
        self.status = options.get("status", 200)
        self.errors = options.get("errors", ())
        self.key = options.get("key", "always")
        self.batch = options.get("batch")
        self.long_poll = options.get("long_poll")
        self.raw_body = options.get("raw_body", False)
        self.group = options.get("group", "")
        self.name = ""
        self.implementation: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self._answer = options.get("answer")
        self._body = options.get("body")
        self._rename = options.get("rename", {})

    def __repr__(self) -> str:
        return f"<operation {self.name}: {self.http_method} {self.path}>"

    @functools.cached_property
    def parameters(self) -> Parameters:
        return Parameters(
            self.name,
            self.method,
            self.path_names,
            self._body,
            self._rename,
            in_query=self.in_query,
            batch=self.batch,
        )

    @functools.cached_property
    def answer(self) -> Any:
        """The type of the answer; None if there is none."""
        return self._answer if self._answer is not None else self.parameters.answer

    @functools.cached_property
    def reply(self) -> Any:
        """The type of the JSON answer, including its envelope if it has one."""
        if self.envelope is None or self.answer is None:
            return self.answer
        name = "".join(word.capitalize() for word in re.split(r"[._]", self.name)) + "Reply"
        return msgspec.defstruct(name, [(self.envelope, self.answer)], frozen=True)

    @property
    def in_query(self) -> bool:
        """Whether parameters travel in the query: the call has no body."""
        return self.http_method in {"GET", "DELETE"}

    @property
    def changes(self) -> bool:
        return self.http_method != "GET"

    @property
    def description(self) -> str:
        return inspect.cleandoc(self.method.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.description.partition("\n")[0].rstrip(".")

    @property
    def under_claim(self) -> bool:
        """Whether it writes under a claim: the path names the task, the body the token."""
        return self.parameters.under_claim

    def wrap(self, answer: Any) -> Any:
        return answer if self.envelope is None else self.reply(answer)

    def unwrap(self, reply: Any) -> Any:
        return reply if self.envelope is None or reply is None else getattr(reply, self.envelope)


class Executor(Protocol):
    """Runs operations for one caller in one workspace."""

    workspace: str
    max_wait_sec: float
    """How long one call may wait for something to happen."""

    async def execute(self, operation: Operation, values: dict[str, Any]) -> Any:
        """Check the values given, run the operation, and return its answer or raise its error."""
        ...

    def perform(self, operation: Operation, values: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """The same with checked values, including every default."""
        ...

    def joining(self, connection: object) -> Executor:
        """The same executor in the transaction that is open on a caller's connection."""
        ...

    async def upload(self, upload: Upload) -> Artifact:
        """Store content as an artifact."""
        ...

    def download(self, artifact_id: str, start: int, end: int | None) -> AsyncGenerator[bytes, None]:
        """Return the bytes of an artifact from `start` up to `end`, block by block."""
        ...


_operations: list[Operation] = []


def operations() -> Iterator[Operation]:
    """All operations declared so far, in order of declaration."""
    return iter(_operations)


class Namespace:
    """Operations about one kind of thing, bound to an executor."""

    namespace: ClassVar[str] = ""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __init_subclass__(cls, *, name: str | None = None, group: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if name is None:
            return
        cls.namespace = name
        for attribute, value in vars(cls).items():
            declared: Operation | None = getattr(value, "operation", None)
            if declared is not None:
                declared.name = f"{name}.{attribute.strip('_')}".strip(".")
                declared.group = declared.group or group or name.replace("_", " ").capitalize()
                _operations.append(declared)


def operation(
    route: str, scope: Scope | None, **options: Unpack[Options]
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Declare a method as an operation."""

    def declare(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        declared = Operation(method, route, scope, **options)
        positional = tuple(inspect.signature(method).parameters)[1:]

        @functools.wraps(method)
        def call(self: Any, /, *args: Any, **values: Any) -> Coroutine[Any, Any, T]:
            if args:
                values = {**_named(method, positional, args, values), **values}
            return self._executor.execute(declared, values)  # type: ignore[no-any-return]  # of the method's own type

        call.operation = declared  # type: ignore[attr-defined]  # read by `operation_of`
        return call  # type: ignore[return-value]  # bound, it takes the method's parameters

    return declare


def _named(
    method: Callable[..., Any], names: tuple[str, ...], args: tuple[Any, ...], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Positional arguments by name, refused as Python refuses them."""
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or given.keys() & values.keys():
        inspect.signature(method).bind(None, *args, **values)  # raises Python's own TypeError
    return given


def operation_of(method: Any) -> Operation:
    """The operation declared on a method of a namespace."""
    found: Operation = method.operation
    return found
