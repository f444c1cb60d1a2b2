"""An endpoint: one operation over HTTP. Routing, decoding, access and the OpenAPI document follow from it."""

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
from shiftwork.wire.shapes import ClaimRefBody

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
    """What every call may say after the `?`."""

    workspace: Name | None = None
    """Which workspace; a token has its own and may name no other."""
    view: ViewName | None = None
    """In whose names: those of a document, or `native` for ours. Without it, the server's own default."""


class ViewQuery(Query):
    """A call whose handler itself reads and answers in the names of a document."""


class Endpoint(NamedTuple):
    """One operation. `scope` None lets everyone in; `body` None means that none is read, `Raw` that it streams."""

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
    """In a view the body is in the document's names, and read as plain JSON."""

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
        """Whether its handler knows views; what others answer is rendered behind them."""
        return issubclass(self.query, ViewQuery)

    @property
    def of_claims(self) -> bool:
        """Whether its body says who works, or under which claim."""
        return isinstance(self.body, type) and issubclass(self.body, (_CLAIM_BODY, ClaimRef, ClaimRefBody))


class EndpointGroup:
    """The operations of one group, in the order of their declaration."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.all: list[Endpoint] = []

    def __call__(  # what an operation is, each by name
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
