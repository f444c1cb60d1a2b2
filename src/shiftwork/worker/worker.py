"""A worker: a declaration that can be run, in this process and in others."""

from __future__ import annotations

import asyncio
import functools
import os
import socket

from shiftwork.client.client import open_queue
from shiftwork.model.errors import InputError
from shiftwork.operation.interface import AnyQueue
from shiftwork.worker import signals
from shiftwork.worker.declaration import Declaration
from shiftwork.worker.delivery import ASKED_SEC, Summary
from shiftwork.worker.runner import Runner


class Worker(Declaration):
    """Declared once; `run` makes it work on a queue until it is stopped."""

    @functools.cached_property
    def _runners(self) -> set[Runner]:
        """The current runs in this process."""
        return set()

    async def run(
        self,
        store: str | AnyQueue,
        *,
        until_idle: bool = False,
        max_tasks: int | None = None,
        runtime_id: str | None = None,
    ) -> Summary:
        """Work until stopped, or until there is nothing left to claim. SIGTERM and SIGINT stop it gracefully.

        With `max_tasks`, claims no more than that many tasks, and ends when they have ended.

        Logs to `shiftwork.worker`: a line for each task at INFO, a failing handler's traceback at ERROR.

        In the main thread, it handles these signals for every worker of the process; the program's own signal handlers
        are restored when the last worker has ended.

        Given an address, heartbeats and maintenance jobs get a connection and a thread of their own. Given an open
        queue, they share its loop, and with `until_idle` no maintenance jobs run: that is for tests. A server runs its
        own maintenance jobs.
        """
        self.must_have_handlers()
        if max_tasks is not None and max_tasks < 1:
            raise InputError(f"expected at least one task, got {max_tasks}", where="max_tasks")
        runner = Runner(self, self.agent_id or default_agent_id(), runtime_id, max_tasks)
        self._runners.add(runner)
        try:
            with signals.listening(asyncio.get_running_loop(), runner.stop):
                return await self._run(runner, store, until_idle=until_idle)
        finally:
            self._runners.discard(runner)

    async def _run(self, runner: Runner, store: str | AnyQueue, *, until_idle: bool) -> Summary:
        if not isinstance(store, str):
            queue = store if self.workspace is None else store.in_workspace(self.workspace)
            return await runner.run(queue, None, until_idle=until_idle)
        opening = open_queue(store, workspace=self.workspace, patience_sec=ASKED_SEC)
        opened = await runner.unless_stopped(opening.as_coroutine())
        if opened is None:
            return runner.summary
        async with opened:
            return await runner.run(opened, store, until_idle=until_idle)

    def stop(self) -> None:
        """Stop all runs in this process, like SIGTERM; call it from the loop that runs them."""
        for runner in self._runners:
            runner.stop()


def default_agent_id() -> str:
    """An agent id that is unique on this host while the process lives."""
    return f"{socket.gethostname()}-{os.getpid()}"
