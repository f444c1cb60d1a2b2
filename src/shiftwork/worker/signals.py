"""SIGTERM and SIGINT stop every worker of a process; the handlers of the program around them come back at the end."""

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
        """What the program had set, by signal, while ours is in place."""

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
                with suppress(ValueError):  # a subinterpreter may not
                    self._before[number] = signal.signal(number, self._stop_all)

    def _restore(self, key: object) -> None:
        """Unless the program has set another handler meanwhile, or has none that Python can set again."""
        self._of_main_thread.discard(key)
        if self._of_main_thread:
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._stop_all and before is not None:
                signal.signal(number, before)
        self._before.clear()

    def _stop_all(self, _number: int, _frame: FrameType | None) -> None:
        """Runs between any two instructions of the main thread: it only leaves word with each loop."""
        for loop, stop in list(self._all.values()):
            with suppress(RuntimeError):  # that loop has been closed
                loop.call_soon_threadsafe(stop)


_listeners = _Listeners()
listening = _listeners.listening
