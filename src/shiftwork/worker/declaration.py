"""The declaration of a worker: its handlers by type, its concurrency, and its abilities."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from shiftwork.model import check
from shiftwork.model.errors import InputError
from shiftwork.model.times import Duration, seconds
from shiftwork.task_types.model import Options, TypeOptions
from shiftwork.task_types.signature import Signature
from shiftwork.task_types.typed_task import TypedTask
from shiftwork.worker import threads
from shiftwork.worker.context import Context, Handler
from shiftwork.worker.lifespan import Enter, Lifespan
from shiftwork.worker.typed_handlers import check_handler, handler_of

H = TypeVar("H", bound=Handler)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskDecorator(Protocol):
    """The decorator that `@worker.task(...)` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> TypedTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> TypedTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> TypedTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> TypedTask[P, R]: ...


class Declaration:
    """Handlers by type, with the worker's options."""

    def __init__(  # one parameter per option of a worker
        self,
        agent_id: str | None = None,
        *,
        concurrency: int | None = None,
        capabilities: Sequence[str] = (),
        models: Sequence[str] = (),
        provider: str | None = None,
        account: str | None = None,
        accounts: Sequence[str] = (),
        budget_usd: float | None = None,
        workspace: str | None = None,
        stop_grace_sec: Duration = 30.0,
        cancel_grace_sec: Duration = 5.0,
        outbox: str | Path | None = None,
        run_tests: bool = False,
        claim_ahead: bool = True,
    ) -> None:
        if concurrency is not None and concurrency < 1:
            raise InputError(f"a worker needs room for at least one task, got {concurrency}", where="concurrency")
        self.agent_id = agent_id
        self.concurrency = concurrency
        """Concurrent tasks; None for `max_concurrent_tasks` of the workspace or its profile, or 10."""
        self.capabilities = list(capabilities)
        self.models = list(models)
        self.provider, self.accounts = provider, [*accounts, *([account] if account is not None else [])]
        """The provider and accounts it uses: agents that share them share their rate limits."""
        self.budget_usd = budget_usd
        self.workspace = workspace
        self.stop_grace_sec = seconds(stop_grace_sec)
        self.cancel_grace_sec = seconds(cancel_grace_sec)
        self.outbox = Path(outbox) if outbox is not None else None
        self.run_tests = run_tests
        """Whether to run commands of `test-pass`; off by default, because every submitter could run programs on this
        machine."""
        self.claim_ahead = claim_ahead
        """Whether it may claim more tasks than it has slots, if they would start within a tenth of a second."""
        self.handlers: dict[str, Handler] = {}
        self.tasks: dict[str, TypedTask[Any, Any]] = {}
        """Those of the handlers that are typed, by type."""
        self.lifespans: list[Lifespan[Any]] = []

    def handler(self, type: str) -> Callable[[H], H]:  # the task's word
        """Register the function that does tasks of this type; plain functions are run in a thread."""

        def register(function: H) -> H:
            check_handler(function, type)
            self._register(type, function)
            return function

        return register

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> TypedTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> TypedTask[P, R]: ...

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> TypedTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> TypedTask[P, R]: ...

    @overload
    def task(self, *, type: str | None = None, **options: Unpack[Options]) -> TaskDecorator: ...

    def task(self, function: Any = None, /, *, type: str | None = None, **options: Any) -> Any:  # type: ignore[misc]  # mypy compares the names of unpacked options
        """Register a typed function: its parameters are the payload, its return value is the result.

        The type is the function's name unless `type` says otherwise. A first parameter annotated `Context` gets the
        context. The other options become settings of the type and a limit of its fleet when the worker starts.
        """
        if function is None:
            return lambda decorated: self._typed(decorated, type, options)
        return self._typed(function, type, options)

    def _typed(self, function: Any, type: str | None, options: dict[str, Any]) -> TypedTask[..., Any]:
        if isinstance(function, TypedTask) or not callable(function):
            raise InputError(f"@worker.task takes a function, not {function!r}", where="task")
        name = check.name(getattr(function, "__name__", "") if type is None else type, "type")
        given = check.read(options, TypeOptions, f"options of {name}")
        task: TypedTask[..., Any] = TypedTask(name, function, Signature(function, Context), given)
        self._register(name, handler_of(task))
        self.tasks[name] = task
        return task

    def _register(self, type: str, handler: Handler) -> None:
        if type in self.handlers:
            raise InputError(f"type {type!r} has a handler already: {self.handlers[type]!r}", where="type")
        self.handlers[type] = handler

    def lifespan(self, function: Enter[T]) -> Lifespan[T]:
        """Register a resource that each process opens once: an async generator that yields it, or a context manager
        function.

        It is entered before the first claim and exited after the last result. `clients.of(ctx)` is the value it
        yielded.
        """
        made = Lifespan(function)
        self.lifespans.append(made)
        return made

    def must_have_handlers(self) -> None:
        if not self.handlers:
            raise InputError("this worker has no handlers", hint="Register one with @worker.handler('type').")


Call = Callable[[Context], Awaitable[Any]]


def as_coroutine(handler: Handler) -> Call:
    """The handler as a coroutine, with the same result and exceptions."""
    if threads.is_async(handler):
        return cast(Call, handler)
    return functools.partial(_call_plain, handler)


async def _call_plain(handler: Handler, context: Context) -> Any:
    return await threads.call(handler, context, name=context.type)
