"""Runs the operator's command when a pool falls below its minimum, for example to start a worker."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from typing import Any

from shiftwork.model.errors import InputError, ShiftworkError
from shiftwork.queue import Queue
from shiftwork.store.store import Row

log = logging.getLogger("shiftwork.server")
LOOK_EVERY_SEC = 2.0
RUN_EVERY_SEC = 60.0
"""The minimum time between two runs for a workspace: a new worker takes a while to register."""


def words(command: str) -> list[str]:
    """Split the command as a shell would."""
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise InputError(f"{command!r} cannot be parsed: {error}", where="--on-below-minimum") from None
    if not found:
        raise InputError("the command is empty", where="--on-below-minimum")
    return found


class BelowMinimum:
    """Runs the command at most once a minute for each workspace while it has too few agents."""

    def __init__(self, queue: Queue, command: str) -> None:
        self._queue = queue
        self._command = words(command)
        self._last: dict[str, float] = {}

    async def run_forever(self) -> None:
        while True:
            try:
                await self.scan()
            except ShiftworkError as error:
                log.warning("cannot check for missing agents: %s", error)
            await asyncio.sleep(LOOK_EVERY_SEC)

    async def scan(self) -> list[str]:
        """Check once; returns the workspaces for which the command was run."""
        rows = await self._queue.engine.store.read(lambda tx: tx.all("conditions_of_kind", kind="pool"))
        now = self._queue.now()
        due = [row["workspace"] for row in rows if self._is_due(row, now)]
        for workspace in due:
            self._last[workspace] = now
            await self._start(workspace)
        return due

    def _is_due(self, row: Row, now: float) -> bool:
        last = self._last.get(row["workspace"])
        return last is None or now - last >= RUN_EVERY_SEC

    async def _start(self, workspace: str) -> None:
        """Start the command without waiting for it. It may be a worker, so it must outlive this server."""
        options: dict[str, Any] = {"env": {**os.environ, "SHIFTWORK_WORKSPACE": workspace}, "start_new_session": True}
        log.warning("workspace %s has too few agents; running %s", workspace, self._command[0])
        try:
            await asyncio.create_subprocess_exec(*self._command, stdin=asyncio.subprocess.DEVNULL, **options)
        except OSError as error:
            log.error("%s cannot be run: %s", self._command[0], error)  # noqa: TRY400  # a traceback would add nothing
