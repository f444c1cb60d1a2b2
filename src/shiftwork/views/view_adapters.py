"""What a view changes about an operation: how its request is read, and how its answer is written.

An operation knows no views. Where a document's request or answer differs in more than names, an adapter for the
operation is registered here; all other answers are rendered by the names that the view declares.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from shiftwork.operation.declare import operation_of


class Instead(NamedTuple):
    """Another operation that a request in a document's names asks for, and its parameters."""

    method: Any
    values: dict[str, Any]


Read = Callable[[Any, Any], Awaitable[dict[str, Any] | Instead]]
"""Given the request and its decoded body in the document's names: the operation's parameters, by name."""
Translate = Callable[[Any, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Given the request and the parameters, of which some hold words of the document: the same in our words."""
Write = Callable[[Any, Any], Awaitable[Any]]
"""Given the request and the operation's answer: what is answered in the document's names."""


class Adapter(NamedTuple):
    read: Read | None = None
    translate: Translate | None = None
    write: Write | None = None


_adapters: dict[str, Adapter] = {}


def reads(method: Any) -> Callable[[Read], Read]:
    """Register how the request of an operation is read in a view."""

    def register(function: Read) -> Read:
        name = operation_of(method).name
        _adapters[name] = adapter_of(name)._replace(read=function)
        return function

    return register


def translates(method: Any) -> Callable[[Translate], Translate]:
    """Register how words of a document in the parameters of an operation become ours; their names are ours already."""

    def register(function: Translate) -> Translate:
        name = operation_of(method).name
        _adapters[name] = adapter_of(name)._replace(translate=function)
        return function

    return register


def writes(method: Any) -> Callable[[Write], Write]:
    """Register how the answer of an operation is written in a view."""

    def register(function: Write) -> Write:
        name = operation_of(method).name
        _adapters[name] = adapter_of(name)._replace(write=function)
        return function

    return register


def adapter_of(operation: str) -> Adapter:
    return _adapters.get(operation, Adapter())
