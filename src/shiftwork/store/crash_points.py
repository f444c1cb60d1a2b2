"""Named points at which a test ends this process: around every commit, and around every write outside of the database.

A point is `<operation>: before commit`, `<operation>: after commit`, or names the write. A point has no effect unless
SHIFTWORK_CRASH_POINT names it or a test has armed it: then the process kills itself there, as `kill -9` would.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
VARIABLE = "SHIFTWORK_CRASH_POINT"
_operation: ContextVar[str] = ContextVar("shiftwork_operation", default="unnamed")


class _Armed:
    def __init__(self, deadly: str | None) -> None:
        self.deadly = deadly
        self._times: Counter[str] = Counter()
        self.passed: list[str] = []

    def reach(self, name: str) -> None:
        self._times[name] += 1
        if (times := self._times[name]) > 1:
            name = f"{name} {times}"
        self.passed.append(name)
        if self.deadly == name:
            os.kill(os.getpid(), signal.SIGKILL)


_armed: _Armed | None = _Armed(os.environ[VARIABLE]) if VARIABLE in os.environ else None


def arm(deadly: str | None) -> list[str]:
    """Crash at the point of this name; None crashes nowhere. On the second pass, a point's name ends with a 2.

    Returns the list to which passed points are added.
    """
    global _armed  # noqa: PLW0603  # a process dies as a whole
    _armed = _Armed(deadly)
    return _armed.passed


def is_armed() -> bool:
    return _armed is not None


def reach(what: str) -> None:
    """Name a point of the current operation."""
    if _armed is not None:
        _armed.reach(f"{_operation.get()}: {what}")


def named(name: str, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Wrap a call so that its points carry this name. Costs nothing if no point is armed."""
    return call if _armed is None else _within(name, call)


async def _within(name: str, call: Coroutine[Any, Any, T]) -> T:
    before = _operation.set(name)
    try:
        return await call
    finally:
        _operation.reset(before)
