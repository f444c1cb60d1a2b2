"""A call queued for SQLite's writer thread, which its caller can abandon."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

from shiftwork.model.errors import OperationTimeout, StoreUnavailable
from shiftwork.store.store import Verb

UNKNOWN = "It is unknown whether this was done; read the task before you try again."


class Job:
    """A verb in the writer's queue, with the caller that waits for it."""

    def __init__(self, verb: Verb[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.verb = verb
        self.context = contextvars.copy_context()
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self._fate = threading.Lock()
        self._abandoned = self._ran = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.wakes: set[int] = set()
        self.ended: set[str] = set()
        self.tells_end = False

    def begin(self) -> bool:
        """Begin the job, unless its caller has given up."""
        with self._fate:
            self._ran = False
            return not self._abandoned

    def end(self) -> None:
        """The verb has run and is committed next, unless its caller has given up."""
        with self._fate:
            if self._abandoned:
                raise OperationTimeout("its caller did not wait for it")
            self._ran = True

    def give_up(self, after_sec: float) -> None:
        """Abandon the job: nothing is changed, unless it is already being committed."""
        with self._fate:
            self._abandoned = True
            ran = self._ran
        if self.future.done():
            return
        if ran:
            what = f"the commit did not finish within {after_sec:.3g} s"
            self.future.set_exception(StoreUnavailable(what, hint=UNKNOWN))
        else:
            self.future.set_exception(OperationTimeout(f"the writer had not done this call within {after_sec:.3g} s"))

    def deliver(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)
