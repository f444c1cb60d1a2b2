"""What a worker is declared with: its handlers by type, how many run at once, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from shiftwork.model.errors import InputError
from shiftwork.worker.calling import Handler

H = TypeVar("H", bound=Handler)


class Declaration:
    """Handlers by type, and the terms on which they are run."""

    def __init__(  # each names one thing that a worker is declared with
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
        """Whether commands of `test-pass` are run; off, since anyone who may submit would run programs on this
        machine."""
        self.handlers: dict[str, Handler] = {}

    def handler(self, type: str) -> Callable[[H], H]:  # the task's word
        """Register the function that does tasks of this type; plain functions are run in a thread."""

        def register(function: H) -> H:
            if type in self.handlers:
                raise InputError(f"type {type!r} has a handler already: {self.handlers[type]!r}", where="type")
            self.handlers[type] = function
            return function

        return register

    def must_have_handlers(self) -> None:
        if not self.handlers:
            raise InputError("this worker has no handlers", hint="Register one with @worker.handler('type').")
