"""Python's search for garbage in cycles, put off while a batch is built.

It looks through all that is alive each time enough has been made, and the tasks of a batch are made to stay: of a
thousand submitted at once it would take a quarter of the time.
"""

from __future__ import annotations

import gc
from types import TracebackType

MANY = 100
"""Tasks from which it matters."""


class _PutOff:
    def __init__(self, count: int) -> None:
        self._on = count >= MANY and gc.isenabled()

    def __enter__(self) -> None:
        if self._on:
            gc.disable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on:
            gc.enable()


def put_off(count: int) -> _PutOff:
    """Not while so many things are built, if they are many; only around code that waits for nothing but its turn."""
    return _PutOff(count)
