"""Runs a typed function as a handler, and declares its type to the queue."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from shiftwork.model import reasons
from shiftwork.model.errors import InputError, ShiftworkError
from shiftwork.operation.interface import AnyQueue
from shiftwork.task_types.codecs import DoesNotFit
from shiftwork.task_types.typed_task import TypedTask
from shiftwork.worker import threads
from shiftwork.worker.context import Context, Done, Fail, Handler

log = logging.getLogger("shiftwork.worker")
DECLARE_AGAIN_SEC = 60.0
"""How often a worker whose types are declared differently checks whether to declare its own again."""
Tasks = Collection[TypedTask[Any, Any]]


async def declare(queue: AnyQueue, agent_id: str, tasks: Tasks) -> bool:
    """Declare the types of a worker; returns whether the declaration in force for any of them differs."""
    if not tasks:
        return False
    found = await queue.types.declare(agent_id, [task.declaration for task in tasks])
    for type_ in found:
        for drift in type_.drift:
            log.warning("type %s: %s", type_.name, drift.text)
    return any(drift.agent_id == agent_id for type_ in found for drift in type_.drift)


async def declare_again(queue: AnyQueue, agent_id: str, tasks: Tasks) -> None:
    """Declare again once the workers of the declaration in force are gone, as after a rollback."""
    drifted = True
    while drifted:
        await asyncio.sleep(DECLARE_AGAIN_SEC)
        try:
            found = await queue.types.declare(agent_id, [task.declaration for task in tasks])
        except ShiftworkError as error:
            log.info("could not declare the types again: %s", error)
            continue
        drifted = any(drift.agent_id == agent_id for type_ in found for drift in type_.drift)
    log.info("this worker's declarations of its types are in force now")


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
    """Call the function. A payload that cannot be decoded fails the task for good: a retry would not help."""
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
        what = f"the return value of {task.signature.name} does not fit its annotation: {error}"
        raise Fail(reasons.INVALID_OUTPUT, what) from None


def check_handler(function: Handler, type: str) -> None:
    """Refuse a handler that cannot be called with only a context, when it is registered."""
    if not callable(function):
        raise InputError(f"the handler of {type!r} is not a function: {function!r}", where="handler")
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InputError(f"{name} is a generator: it returns no result", where=name, hint="Return the result instead.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a C function without a signature
    try:
        signature.bind(None)
    except TypeError as error:
        hint = "A handler takes only the context: `async def handle(ctx)`; @worker.task takes typed parameters."
        raise InputError(f"{name}{signature} cannot be a handler: {error}", where=name, hint=hint) from None
