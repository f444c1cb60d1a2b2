"""Endpoints: an operation over HTTP. Routing, decoding, access and the OpenAPI document are derived from them.

`@serves` registers the handler of an operation that needs more than its declaration: a stream, an ETag, a wait.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shiftwork import views
from shiftwork.engine.claims_api import Claims
from shiftwork.model.errors import ShiftworkError
from shiftwork.model.task import Fields, Name
from shiftwork.operation.declare import PlainText, Raw, operation_of
from shiftwork.operation.local import load_implementations
from shiftwork.operation.parameters import ClaimRef

__all__ = ["Endpoint", "EndpointGroup", "PlainText", "Query", "Raw", "ViewQuery"]
Scope = Literal["read", "submit", "work", "operate", "admin", "server"]
if TYPE_CHECKING:
    ViewName = str
else:
    load_implementations()
    ViewName = Literal[views.names()]
Handler = Callable[..., Awaitable[Any]]
_CLAIM_BODY: type = operation_of(Claims.request).parameters.body


class Query(Fields):
    """The query parameters of every call."""

    workspace: Name | None = None
    """The workspace; a token has its own and may name no other."""
    view: ViewName | None = None
    """Whose names to use: a document's, or `native` for ours. By default, the server's view."""


class ViewQuery(Query):
    """The query of a call whose handler itself translates a document's names."""


class Endpoint(NamedTuple):
    """One operation. `scope` None allows everyone; `body` None means no body, `Raw` a stream."""

    method: str
    path: str
    scope: Scope | None
    handler: Handler
    group: str
    body: Any
    query: type[Query]
    answer: Any
    status: int
    errors: tuple[type[ShiftworkError], ...]
    viewed_body: bool
    """Whether the body in a view is in the document's names and read as plain JSON."""

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def summary(self) -> str:
        return inspect.cleandoc(self.handler.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def description(self) -> str:
        return inspect.cleandoc(self.handler.__doc__ or "")

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    @property
    def viewed(self) -> bool:
        """Whether its handler supports views; the answers of others are rendered afterwards."""
        return issubclass(self.query, ViewQuery)

    @property
    def of_claims(self) -> bool:
        """Whether its body names the agent, or the claim."""
        return isinstance(self.body, type) and issubclass(self.body, (_CLAIM_BODY, ClaimRef))


class EndpointGroup:
    """The operations of one group, in the order of their declaration."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.all: list[Endpoint] = []

    def __call__(  # the properties of an operation, each by name
        self,
        call: str,
        scope: Scope | None,
        *,
        answer: Any,
        body: Any = None,
        query: type[Query] = Query,
        status: int = 200,
        errors: tuple[type[ShiftworkError], ...] = (),
        viewed_body: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated coroutine as the operation `call`, written as "POST /api/tasks"."""
        method, path = call.split(" ")

        def declare(handler: Handler) -> Handler:
            self.all.append(
                Endpoint(method, path, scope, handler, self.group, body, query, answer, status, errors, viewed_body)
            )
            return handler

        return declare


class Served(NamedTuple):
    """How one operation is served."""

    handler: Handler
    query: type[Query] | None = None
    """The query, if it has more than the operation's parameters."""
    viewed_body: bool = False
    """In a view it reads a body in the document's names."""


_served: dict[str, Served] = {}


def serves(method: Any, *, query: type[Query] | None = None, viewed_body: bool = False) -> Callable[[Handler], Handler]:
    """Register the handler of an operation; it supports every view by itself."""

    def register(handler: Handler) -> Handler:
        _served[operation_of(method).name] = Served(handler, query, viewed_body)
        return handler

    return register


def served(operation: str) -> Served | None:
    return _served.get(operation)
