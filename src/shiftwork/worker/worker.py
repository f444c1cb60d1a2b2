"""A worker as a program declares it: which types it handles, how many at once, and what it can do."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from shiftwork.client.opening import AnyQueue, open_queue
from shiftwork.core.errors import InputError
from shiftwork.worker import signals
from shiftwork.worker.calling import Handler
from shiftwork.worker.delivery import ASKED_SEC, Summary
from shiftwork.worker.runner import Runner

H = TypeVar("H", bound=Handler)


class Worker:
    """Handlers by type. Declared once; `run` makes it work on a queue until it is stopped."""

    def __init__(  # noqa: PLR0913  # each names one thing that a worker is declared with
        self,
        agent_id: str | None = None,
        *,
        concurrency: int | None = None,
        capabilities: Sequence[str] = (),
        models: Sequence[str] = (),
        provider: str | None = None,
        account: str | None = None,
        budget_usd: float | None = None,
        workspace: str | None = None,
        stop_grace_sec: float = 30.0,
        cancel_grace_sec: float = 5.0,
        outbox: str | Path | None = None,
        run_tests: bool = False,
    ) -> None:
        if concurrency is not None and concurrency < 1:
            raise InputError(f"a worker needs room for at least one task, got {concurrency}", where="concurrency")
        self.agent_id = agent_id
        self.concurrency = concurrency
        """Tasks at once; None for `max_concurrent_tasks` of the workspace or its profile, else 10."""
        self.capabilities = list(capabilities)
        self.models = list(models)
        self.provider, self.account = provider, account
        """Whose models it uses, and on which account: those who share them share their rate limits."""
        self.budget_usd = budget_usd
        self.workspace = workspace
        self.stop_grace_sec = stop_grace_sec
        self.cancel_grace_sec = cancel_grace_sec
        self.outbox = Path(outbox) if outbox is not None else None
        self.run_tests = run_tests
        """Whether commands of `test-pass` are run; off, since whoever may submit would run programs on this machine."""
        self.handlers: dict[str, Handler] = {}
        self._runners: set[Runner] = set()

    def handler(self, type: str) -> Callable[[H], H]:  # noqa: A002  # the task's word
        """Register the function that does tasks of this type; plain functions are run in a thread."""

        def register(function: H) -> H:
            if type in self.handlers:
                raise InputError(f"type {type!r} has a handler already: {self.handlers[type]!r}", where="type")
            self.handlers[type] = function
            return function

        return register

    async def run(self, store: str | AnyQueue, *, until_idle: bool = False, runtime_id: str | None = None) -> Summary:
        """Work until stopped, or until there is nothing left to claim. SIGTERM and SIGINT stop it gracefully.

        In the main thread it hears them for every worker of the process; the handlers that the program had set come
        back when the last of them has ended.

        Given an address, heartbeats and duties have a connection and a thread of their own. Given an open queue, they
        share its loop, and with `until_idle` there are no duties: that is for tests. A server does its duties itself.
        """
        self.must_have_handlers()
        runner = Runner(self, self.agent_id or default_agent_id(), runtime_id)
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
        opened = await runner.unless_stopped(opening)
        if opened is None:
            return runner.summary
        async with opened:
            return await runner.run(opened, store, until_idle=until_idle)

    def must_have_handlers(self) -> None:
        if not self.handlers:
            raise InputError("this worker has no handlers", mend="Register one with @worker.handler('type').")

    def stop(self) -> None:
        """Stop what `run` does in this process, as SIGTERM would; called from the loop that runs it."""
        for runner in self._runners:
            runner.stop()


def default_agent_id() -> str:
    """Unique on this host while the process lives."""
    return f"{socket.gethostname()}-{os.getpid()}"
