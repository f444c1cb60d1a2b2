"""The queue that this code works with, where it need not be named: inside a handler, or a block that opened one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from shiftwork.model.errors import InputError

_queue: ContextVar[Any] = ContextVar("shiftwork_queue", default=None)


@contextmanager
def using(queue: Any) -> Iterator[None]:
    """Have this queue be the current one inside the block, also in the tasks and threads begun there."""
    token = _queue.set(queue)
    try:
        yield
    finally:
        with suppress(ValueError):  # the block ends in another context, as in a fixture: there is nothing to undo
            _queue.reset(token)


def queue() -> Any:
    """Return the current queue."""
    found = _queue.get()
    if found is None:
        hint = "Use `async with Queue.open(...)`, or name the queue: `task.on(queue).submit(...)`."
        raise InputError("there is no current queue to submit to", where="queue", hint=hint)
    return found
