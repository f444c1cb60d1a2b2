"""Sends handlers' log lines: those of all tasks once a second, and a task's last ones before its result."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from shiftwork.model.errors import ShiftworkError
from shiftwork.operation.interface import AnyQueue
from shiftwork.task_logs.model import MAX_LINES, NewLog, NewLogLine

log = logging.getLogger("shiftwork.worker")
PAUSE_SEC = 1.0
"""How long lines are gathered."""

MAX_WAITING = MAX_LINES - 1
"""The most unsent lines per task. Beyond that, the newest are dropped, and a line says how many."""


class LogSender:
    """The log lines of one worker. Handlers in threads log as well."""

    def __init__(self, queue: AnyQueue, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._queue = queue
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, list[NewLogLine]] = {}
        self._left_out: dict[str, int] = {}
        self._is_due = False
        self._changing = threading.Lock()
        self._sending = asyncio.Lock()

    def add(self, token: str, line: NewLogLine) -> None:
        with self._changing:
            lines = self._waiting.setdefault(token, [])
            if len(lines) >= MAX_WAITING:
                self._left_out[token] = self._left_out.get(token, 0) + 1
                return
            lines.append(line)
            was_due, self._is_due = self._is_due, True
        if not was_due:
            self._loop.call_soon_threadsafe(self._loop.call_later, PAUSE_SEC, self._send_later)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is waiting or being sent."""
        return not self._waiting and not self._sending.locked()

    def _send_later(self) -> None:
        self._is_due = False
        if self._waiting:
            self._spawn(self.send())

    async def send(self, tokens: Collection[str] | None = None) -> None:
        """Send the waiting lines of these claims, or of all; returns when they have arrived."""
        if self.is_empty:
            return
        async with self._sending:
            if logs := self._take(tokens):
                await self._send(logs)

    def _take(self, tokens: Collection[str] | None) -> list[NewLog]:
        with self._changing:
            chosen = [token for token in (self._waiting if tokens is None else tokens) if token in self._waiting]
            taken = {token: self._waiting.pop(token) for token in chosen}
            for token, lines in taken.items():
                if left_out := self._left_out.pop(token, 0):
                    lines.append(NewLogLine(f"[{left_out} lines were logged too fast and left out]", "warning"))
        return [NewLog(token, lines) for token, lines in taken.items()]

    async def _send(self, logs: list[NewLog]) -> None:
        """Heartbeats handle lost claims; an unreachable store does not delay the work."""
        try:
            outcomes = await self._queue.batch.log(logs)
        except ShiftworkError as error:
            log.info("lost the log lines of %d tasks: %s", len(logs), error)
            return
        for outcome in outcomes:
            if outcome.error is not None:
                log.info("log lines of %s were refused: %s", outcome.task_id, outcome.error)
