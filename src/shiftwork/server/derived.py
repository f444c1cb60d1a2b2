"""Serves an operation over HTTP by its declaration alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from shiftwork.compat.views import (  # noqa: F401  # register their adapters
    agents_adapters,
    claims_adapters,
    control_adapters,
    limits_adapters,
    tasks_adapters,
    waits_adapters,
)
from shiftwork.compat.views.adapters import Instead, adapter_of
from shiftwork.model.errors import InputError, NotFound
from shiftwork.operation.declare import Operation, operation_of, operations
from shiftwork.operation.local import load_implementations
from shiftwork.operation.parameters import SOMETHING
from shiftwork.server import (  # noqa: F401  # register handlers and checks
    claim_handler,
    hook_handler,
    private_sinks,
    reading,
    runtime_handlers,
    task_handlers,
)
from shiftwork.server.access_rules import rule_of
from shiftwork.server.ask import Ask
from shiftwork.server.door import Door, Query, Raw, ViewQuery
from shiftwork.server.handlers import check_of, served

VERSION = "version"
"""The parameter that may come as the header If-Match, too."""
load_implementations()


def doors() -> Iterator[Door]:
    """Fixed paths come before those with a parameter in the same place: the first that fits answers."""
    return map(_door, sorted(operations(), key=lambda operation: operation.path.replace("{", "\x7f{")))


def _door(operation: Operation) -> Door:
    parameters = operation.parameters
    adapter, by_hand = adapter_of(operation.name), served(operation.name)
    query: Any = msgspec.defstruct(
        f"{operation.name.replace('.', '_')}_query",
        parameters.query,
        bases=(ViewQuery if adapter.read or adapter.write or by_hand else Query,),
        kw_only=True,
        rename=parameters.rename or None,
    )
    return Door(
        operation.http_method,
        operation.path,
        operation.scope,
        _Handler(operation),
        operation.group,
        _body(operation),
        by_hand.query if by_hand and by_hand.query else query,
        operation.reply,
        operation.status,
        operation.errors,
        viewed_body=by_hand.viewed_body if by_hand else adapter.read is not None,
    )


def _body(operation: Operation) -> Any:
    parameters = operation.parameters
    if operation.raw_body:
        return Raw
    return Annotated[parameters.body, SOMETHING] if parameters.body_needs_a_field else parameters.body


class _Handler:
    """Runs one operation with what the request says."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._adapter = adapter_of(operation.name)
        self._by_hand = served(operation.name)
        self._check = check_of(operation.name)
        self._rule = rule_of(operation.name)
        self.__name__ = operation.name.replace(".", "_")
        self.__doc__ = operation.description

    async def __call__(self, ask: Ask, body: Any = None) -> Any:
        operation, adapter, view = self._operation, self._adapter, ask.view
        if self._by_hand is not None:
            return await (self._by_hand.handler(ask) if body is None else self._by_hand.handler(ask, body))
        if view is not None and adapter.read is not None:
            values = await adapter.read(ask, body)
            if isinstance(values, Instead):
                operation, values = operation_of(values.method), values.values
            _refuse_other_fields(operation, values)
            values = operation.parameters.read(_with_version(operation, ask, values))
        else:
            values = await _values(operation, ask, body)
        if view is not None and adapter.translate is not None:
            values = await adapter.translate(ask, values)
        if self._check is not None:
            self._check(ask, values)
        if self._rule is not None:
            await self._rule(ask, values)
        answer = await ask.queue.executor.perform(operation, values)
        if view is not None and adapter.write is not None:
            return await adapter.write(ask, answer)
        return operation.wrap(answer)


def _refuse_other_fields(operation: Operation, values: dict[str, Any]) -> None:
    """What an adapter reads comes from a caller: a wrong name in it is the caller's error, not a program's."""
    for name in values:
        if name not in operation.parameters.names:
            raise InputError(f"Object contains unknown field `{name}`", where=name)
    for name in operation.parameters.required:
        if name not in values:
            raise InputError(f"Object missing required field `{name}`", where=name)


async def _values(operation: Operation, ask: Ask, body: Any) -> dict[str, Any]:
    parameters = operation.parameters
    values = {
        name: _from_path(operation, name, ask.path[name]) for name in operation.path_names if name in parameters.names
    }
    values |= {field[0]: getattr(ask.query, field[0]) for field in parameters.query}
    if operation.under_claim:
        values["token"] = await ask.token(body)
    if parameters.body_name is not None:
        values[parameters.body_name] = body
    elif body is not None:
        values |= {name: getattr(body, name) for name in parameters.names if hasattr(body, name) and name not in values}
    return _with_version(operation, ask, parameters.numbers(values))


def _from_path(operation: Operation, name: str, text: str) -> Any:
    """A part of the path as its declared type. A number that is none names nothing that exists."""
    try:
        return msgspec.convert(text, operation.parameters.kinds[name], strict=False)
    except msgspec.ValidationError as error:
        if str(error).startswith("Expected `int`"):
            raise NotFound(f"there is no {name} {text!r}", where=name) from None
        raise InputError(str(error), where=name) from None


def _with_version(operation: Operation, ask: Ask, values: dict[str, Any]) -> dict[str, Any]:
    if VERSION in operation.parameters.names and values.get(VERSION) is None:
        return {**values, VERSION: reading.if_match(ask.request)}
    return values
