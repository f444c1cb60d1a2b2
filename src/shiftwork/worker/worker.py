"""A worker as a program declares it: which types it handles, how many at once, and what it can do."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from shiftwork.core.errors import InputError
from shiftwork.queue.queue import Queue
from shiftwork.worker.context import Context
from shiftwork.worker.runner import Runner, Summary

Handler = Callable[[Context], Awaitable[Any]] | Callable[[Context], Any]


class Worker:
    """Handlers by type. Declared once; `run` makes it work on a queue until it is stopped."""

    def __init__(
        self,
        agent_id: str | None = None,
        *,
        concurrency: int = 10,
        capabilities: Sequence[str] = (),
        models: Sequence[str] = (),
        budget_usd: float | None = None,
        workspace: str = "default",
        stop_grace_sec: float = 30.0,
        cancel_grace_sec: float = 5.0,
        outbox: str | Path | None = None,
    ) -> None:
        if concurrency < 1:
            raise InputError(f"a worker needs room for at least one task, got {concurrency}", where="concurrency")
        self.agent_id = agent_id
        self.concurrency = concurrency
        self.capabilities = list(capabilities)
        self.models = list(models)
        self.budget_usd = budget_usd
        self.workspace = workspace
        self.stop_grace_sec = stop_grace_sec
        self.cancel_grace_sec = cancel_grace_sec
        self.outbox = Path(outbox) if outbox is not None else None
        self.handlers: dict[str, Handler] = {}

    def handler(self, type: str) -> Callable[[Handler], Handler]:  # noqa: A002  # the task's word
        """Register the function that does tasks of this type; plain functions are run in a thread."""

        def register(function: Handler) -> Handler:
            if type in self.handlers:
                raise InputError(f"type {type!r} has a handler already: {self.handlers[type]!r}", where="type")
            self.handlers[type] = function
            return function

        return register

    async def run(self, store: str | Queue, *, until_idle: bool = False, runtime_id: str | None = None) -> Summary:
        """Work until stopped, or until there is nothing left to do. SIGTERM and SIGINT stop it gracefully."""
        if not self.handlers:
            raise InputError("this worker has no handlers", mend="Register one with @worker.handler('type').")
        runner = Runner(self, self.agent_id or default_agent_id(), runtime_id)
        if isinstance(store, Queue):
            return await runner.run(store.in_workspace(self.workspace), None, until_idle=until_idle)
        async with await Queue.open(store, workspace=self.workspace) as queue:
            return await runner.run(queue, store, until_idle=until_idle)


def default_agent_id() -> str:
    """Unique on this host while the process lives."""
    return f"{socket.gethostname()}-{os.getpid()}"
