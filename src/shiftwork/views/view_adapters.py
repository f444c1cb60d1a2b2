"""Adapters: how a view reads the request of an operation, and writes its answer.

Operations do not know about views. If a document's request or answer differs in more than names, an adapter for the
operation is registered here; all other answers are rendered with the view's names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from shiftwork.operation.declare import operation_of


class Instead(NamedTuple):
    """The operation to run instead, with its parameters."""

    method: Any
    values: dict[str, Any]


Read = Callable[[Any, Any], Awaitable[dict[str, Any] | Instead]]
"""Converts the request and its body in the document's names to the operation's parameters, by name."""
Translate = Callable[[Any, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Converts parameters that contain words of the document to our words."""
Write = Callable[[Any, Any], Awaitable[Any]]
"""Converts the operation's answer to the document's names."""


class Adapter(NamedTuple):
    read: Read | None = None
    translate: Translate | None = None
    write: Write | None = None


_adapters: dict[str, Adapter] = {}


def reads(method: Any) -> Callable[[Read], Read]:
    """Register the function that reads the request of an operation in a view."""

    def register(function: Read) -> Read:
        name = operation_of(method).name
        _adapters[name] = adapter_of(name)._replace(read=function)
        return function

    return register


def translates(method: Any) -> Callable[[Translate], Translate]:
    """Register the function that translates a document's words in parameters, whose names are already ours."""

    def register(function: Translate) -> Translate:
        name = operation_of(method).name
        _adapters[name] = adapter_of(name)._replace(translate=function)
        return function

    return register


def writes(method: Any) -> Callable[[Write], Write]:
    """Register the function that writes the answer of an operation in a view."""

    def register(function: Write) -> Write:
        name = operation_of(method).name
        _adapters[name] = adapter_of(name)._replace(write=function)
        return function

    return register


def adapter_of(operation: str) -> Adapter:
    return _adapters.get(operation, Adapter())
