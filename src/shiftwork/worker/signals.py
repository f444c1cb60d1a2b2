"""SIGTERM and SIGINT stop all workers of a process; the program's own signal handlers are restored at the end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGTERM, signal.SIGINT)
Listener = tuple[asyncio.AbstractEventLoop, Callable[[], None]]


class _Listeners:
    """All workers of this process. Only the main thread can set handlers, so it alone installs and restores."""

    def __init__(self) -> None:
        self._all: dict[object, Listener] = {}
        self._of_main_thread: set[object] = set()
        self._before: dict[signal.Signals, Any] = {}
        """The program's own handlers by signal, while ours are installed."""

    @contextmanager
    def listening(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
        key = object()
        self._all[key] = (loop, stop)
        in_main_thread = threading.current_thread() is threading.main_thread()
        try:
            if in_main_thread:
                self._install(key)
            yield
        finally:
            self._all.pop(key, None)
            if in_main_thread:
                self._restore(key)

    def _install(self, key: object) -> None:
        first = not self._of_main_thread
        self._of_main_thread.add(key)
        if first:
            for number in NUMBERS:
                with suppress(ValueError):  # not allowed in a subinterpreter
                    self._before[number] = signal.signal(number, self._stop_all)

    def _restore(self, key: object) -> None:
        """Restore the program's handler, unless it has set another meanwhile, or Python cannot set it again."""
        self._of_main_thread.discard(key)
        if self._of_main_thread:
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._stop_all and before is not None:
                signal.signal(number, before)
        self._before.clear()

    def _stop_all(self, _number: int, _frame: FrameType | None) -> None:
        """Runs between any two instructions of the main thread, so it only schedules a call on each loop."""
        for loop, stop in list(self._all.values()):
            with suppress(RuntimeError):  # that loop has been closed
                loop.call_soon_threadsafe(stop)


_listeners = _Listeners()
listening = _listeners.listening
