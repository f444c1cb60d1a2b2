"""Registers a server's additions to operations: handwritten handlers (streams, ETags), and checks of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from shiftwork.operation.declare import operation_of
from shiftwork.server.endpoint import Handler, Query
from shiftwork.server.request_context import RequestContext

Check = Callable[[RequestContext, dict[str, Any]], None]


class Served(NamedTuple):
    """How one operation is served."""

    handler: Handler
    query: type[Query] | None = None
    """The query, if it has more than the operation's parameters."""
    viewed_body: bool = False
    """In a view it reads a body in the document's names."""


_served: dict[str, Served] = {}
_checks: dict[str, Check] = {}


def serves(method: Any, *, query: type[Query] | None = None, viewed_body: bool = False) -> Callable[[Handler], Handler]:
    """Register the handler of an operation; it supports every view by itself."""

    def register(handler: Handler) -> Handler:
        _served[operation_of(method).name] = Served(handler, query, viewed_body)
        return handler

    return register


def served(operation: str) -> Served | None:
    return _served.get(operation)


def checks(method: Any) -> Callable[[Check], Check]:
    """Register a check of an operation's values over HTTP, before it runs."""

    def register(check: Check) -> Check:
        _checks[operation_of(method).name] = check
        return check

    return register


def check_of(operation: str) -> Check | None:
    return _checks.get(operation)
