"""Runs a typed function as a handler: decodes its payload before, encodes its result after."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from shiftwork.model import reasons
from shiftwork.model.errors import InputError
from shiftwork.task_types.codecs import DoesNotFit
from shiftwork.task_types.typed_task import TypedTask
from shiftwork.worker import threads
from shiftwork.worker.calling import Handler
from shiftwork.worker.context import Context, Done, Fail


def handler_of(task: TypedTask[Any, Any]) -> Handler:
    """The handler of a typed task; plain functions stay plain, and run in a thread."""
    if threads.is_async(task.function):

        async def call_async(context: Context) -> Any:
            return _result(task, await _call(task, context)())

        return call_async

    def call_plain(context: Context) -> Any:
        return _result(task, _call(task, context)())

    return call_plain


def _call(task: TypedTask[Any, Any], context: Context) -> Callable[[], Any]:
    """The function with its arguments. A payload that does not decode would not at the next attempt either."""
    try:
        args, kwargs = task.signature.decode(context.payload)
    except DoesNotFit as error:
        what = f"the payload does not fit the parameters of {task.signature.name}: {error}"
        raise Fail(reasons.INVALID_INPUT, what, retry=False) from None
    first = (context,) if task.signature.takes_context else ()
    return functools.partial(task.function, *first, *args, **kwargs)


def _result(task: TypedTask[Any, Any], value: Any) -> Any:
    try:
        if isinstance(value, Done):
            return msgspec.structs.replace(value, data=task.signature.encode_result(value.data))
        return task.signature.encode_result(value)
    except DoesNotFit as error:
        what = f"what {task.signature.name} returned does not fit its annotation: {error}"
        raise Fail(reasons.INVALID_OUTPUT, what) from None


def check_handler(function: Handler, type: str) -> None:
    """Refuse what cannot be called with a context and nothing else, when it is registered."""
    if not callable(function):
        raise InputError(f"the handler of {type!r} is not a function: {function!r}", where="handler")
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InputError(f"{name} is a generator: it returns no result", where=name, hint="Return the result instead.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C, and says nothing about itself
    try:
        signature.bind(None)
    except TypeError as error:
        hint = "A handler takes the context alone: `async def handle(ctx)`; @worker.task takes typed parameters."
        raise InputError(f"{name}{signature} cannot be a handler: {error}", where=name, hint=hint) from None
