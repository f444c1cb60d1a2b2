"""Serves an operation over HTTP from its declaration alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from shiftwork import tracing
from shiftwork.model.errors import InputError, NotFound
from shiftwork.model.task import Usage
from shiftwork.operation.declare import Operation, operation_of, operations
from shiftwork.operation.local import load_implementations
from shiftwork.operation.parameters import SOMETHING
from shiftwork.server import request_parsing
from shiftwork.server.access_rules import rule_of
from shiftwork.server.endpoint import Endpoint, Query, Raw, ViewQuery, served
from shiftwork.server.request_context import RequestContext
from shiftwork.views.view_adapters import Instead, adapter_of

VERSION = "version"
"""The parameter that may come as the header If-Match, too."""
load_implementations()


def endpoints() -> Iterator[Endpoint]:
    """Put fixed paths before those with a parameter in the same place: the first match answers."""
    return map(_endpoint, sorted(operations(), key=lambda operation: operation.path.replace("{", "\x7f{")))


def _endpoint(operation: Operation) -> Endpoint:
    parameters = operation.parameters
    adapter, by_hand = adapter_of(operation.name), served(operation.name)
    query: Any = msgspec.defstruct(
        f"{operation.name.replace('.', '_')}_query",
        parameters.query,
        bases=(ViewQuery if adapter.read or adapter.write or by_hand else Query,),
        kw_only=True,
        rename=parameters.rename or None,
    )
    return Endpoint(
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
    """Runs one operation with the values of the request."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._adapter = adapter_of(operation.name)
        self._by_hand = served(operation.name)
        self._rule = rule_of(operation.name)
        self.__name__ = operation.name.replace(".", "_")
        self.__doc__ = operation.description

    async def __call__(self, context: RequestContext, body: Any = None) -> Any:
        operation, adapter, view = self._operation, self._adapter, context.view
        if self._by_hand is not None:
            return await (self._by_hand.handler(context) if body is None else self._by_hand.handler(context, body))
        if view is not None and adapter.read is not None:
            values = await adapter.read(context, body)
            if isinstance(values, Instead):
                operation, values = operation_of(values.method), values.values
            _refuse_other_fields(operation, values)
            values = operation.parameters.read(_with_version(operation, context, values))
        else:
            values = await _values(operation, context, body)
        if view is not None and adapter.translate is not None:
            values = await adapter.translate(context, values)
        if self._rule is not None:
            await self._rule(context, values)
        _annotate_span(values)
        answer = await context.queue.executor.perform(operation, values)
        if view is not None and adapter.write is not None:
            return await adapter.write(context, answer)
        return operation.wrap(answer)


def _refuse_other_fields(operation: Operation, values: dict[str, Any]) -> None:
    """An adapter reads the caller's input: a wrong name is the caller's error, not ours."""
    for name in values:
        if name not in operation.parameters.names:
            raise InputError(f"Object contains unknown field `{name}`", where=name)
    for name in operation.parameters.required:
        if name not in values:
            raise InputError(f"Object missing required field `{name}`", where=name)


async def _values(operation: Operation, context: RequestContext, body: Any) -> dict[str, Any]:
    parameters = operation.parameters
    values = {
        name: _from_path(operation, name, context.path[name])
        for name in operation.path_names
        if name in parameters.names
    }
    values |= {field[0]: getattr(context.query, field[0]) for field in parameters.query}
    if operation.under_claim:
        values["token"] = await context.token(body)
    if parameters.body_name is not None:
        values[parameters.body_name] = body
    elif body is not None:
        fields = type(body).__struct_fields__
        values |= {name: getattr(body, name) for name in parameters.names if name in fields and name not in values}
    return _with_version(operation, context, parameters.numbers(values))


def _from_path(operation: Operation, name: str, text: str) -> Any:
    """A part of the path as its declared type. An invalid number is not found."""
    try:
        return msgspec.convert(text, operation.parameters.kinds[name], strict=False)
    except msgspec.ValidationError as error:
        if str(error).startswith("Expected `int`"):
            raise NotFound(f"there is no {name} {text!r}", where=name) from None
        raise InputError(str(error), where=name) from None


def _with_version(operation: Operation, context: RequestContext, values: dict[str, Any]) -> dict[str, Any]:
    if VERSION in operation.parameters.names and values.get(VERSION) is None:
        return {**values, VERSION: request_parsing.if_match(context.request)}
    return values


_GEN_AI = {
    "agent_id": "gen_ai.agent.name",
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "session_id": "gen_ai.conversation.id",
}


def _annotate_span(values: Mapping[str, Any]) -> None:
    """Record facts about an agent's work on the request's span, with the attributes of the GenAI conventions.

    Tokens have attributes of our own: the agent's span already counts them.
    """
    if not tracing.is_on():
        return
    facts: dict[str, Any] = {ours: values[name] for name, ours in _GEN_AI.items() if isinstance(values.get(name), str)}
    if isinstance(used := values.get("usage"), Usage):
        facts |= {"gen_ai.response.model": used.model, "shiftwork.tokens_in": used.tokens_in}
        facts |= {"shiftwork.tokens_out": used.tokens_out, "shiftwork.cost_usd": used.cost_usd}
    tracing.annotate(facts)
