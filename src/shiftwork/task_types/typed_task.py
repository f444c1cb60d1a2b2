"""A typed function as a task: encodes arguments to a checked payload, and decodes the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from shiftwork.model import check
from shiftwork.model.errors import InputError, InvalidPayload
from shiftwork.model.task import NewTask, TaskOptions
from shiftwork.operation import current
from shiftwork.operation.blocking_handles import SyncTaskHandle
from shiftwork.operation.declare import Namespace
from shiftwork.operation.handle import TaskHandle
from shiftwork.task_types.codecs import DoesNotFit
from shiftwork.task_types.model import TypeDeclaration, TypeOptions
from shiftwork.task_types.signature import Signature

P = ParamSpec("P")
R = TypeVar("R")
X_contra = TypeVar("X_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class OneInput(Protocol[X_contra, R_co]):
    """A typed task that can be called with one argument; every `TypedTask` whose other parameters have defaults."""

    @property
    def type(self) -> str: ...

    def encode(self, input: X_contra, /) -> dict[str, Any]: ...

    def decode_result(self, data: Any) -> R_co: ...


class Submits(Protocol):
    """A queue that typed tasks are submitted to: `Queue`, or `Client`."""

    async def submit(self, task: NewTask, /) -> TaskHandle[Any]: ...


class SubmitsBlocking(Protocol):
    """Like `Submits`, with blocking calls: `SyncQueue`."""

    def submit(self, task: NewTask, /) -> SyncTaskHandle[Any]: ...


class _Typed(Generic[P, R]):
    """A function with the type, the schemas and the options of its tasks."""

    def __init__(
        self,
        type: str,
        function: Callable[..., Any],
        signature: Signature,
        options: TypeOptions,
        fields: TaskOptions | None = None,
    ) -> None:
        self._type = type
        self._signature = signature
        self.fields: TaskOptions = fields or {}
        """The fields set by `with_options` for submitted tasks."""
        self.function = function
        """The original function, for tests that call it directly."""
        self.options = options

    def __repr__(self) -> str:
        return f"<task {self._type}: {self._signature.name}>"

    @property
    def type(self) -> str:
        """The type of its tasks."""
        return self._type

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def declaration(self) -> TypeDeclaration:
        """The declaration that a worker sends to the queue."""
        found = self._signature
        return TypeDeclaration(
            name=self._type,
            payload_schema=found.payload_schema,
            result_schema=found.result_schema,
            options=self.options,
        )

    def encode(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return the payload of a task with these arguments; raises InvalidPayload if they do not fit."""
        try:
            return self._signature.encode(args, kwargs)
        except DoesNotFit as error:
            raise InvalidPayload(f"the payload does not fit type {self._type!r}: {error}", where="payload") from None

    def decode_result(self, data: Any) -> R:
        """Return a result as the type that the function declares."""
        try:
            decoded: R = self._signature.decode_result(data)
        except DoesNotFit as error:
            hint = "Other code completed the task; `queue.result` returns its result undecoded."
            raise InputError(
                f"the result does not fit type {self._type!r}: {error}", where="result", hint=hint
            ) from None
        return decoded

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Return a task with these arguments, for batches, DAGs and `ctx.spawn`."""
        fields = {**self.fields, "type": self._type, "payload": self.encode(*args, **kwargs)}
        return check.read(fields, NewTask, "task")

    def with_options(self, **options: Unpack[TaskOptions]) -> Self:
        """Return the same task with these fields for what is submitted: `priority`, `tags`, `idempotency_key` ..."""
        return self._copy({**self.fields, **options})

    def _copy(self, fields: TaskOptions) -> Self:
        raise NotImplementedError


class TypedTask(_Typed[P, R]):
    """What `@worker.task` makes of a function: `P` are its parameters without the context, `R` is its result.

    `submit` goes to the current queue: that of the handler it is called in, or of the `async with` block around it.
    """

    def __init__(
        self,
        type: str,
        function: Callable[..., Any],
        signature: Signature,
        options: TypeOptions,
        fields: TaskOptions | None = None,
        queue: Submits | None = None,
    ) -> None:
        super().__init__(type, function, signature, options, fields)
        self._queue = queue

    @overload
    def on(self, queue: Submits) -> TypedTask[P, R]: ...

    @overload
    def on(self, queue: SubmitsBlocking) -> SyncTypedTask[P, R]: ...

    def on(self, queue: Any) -> Any:
        """Return the same task for this queue; for a `SyncQueue`, with blocking calls."""
        if not isinstance(queue, Namespace):
            return SyncTypedTask(queue, self)
        return TypedTask(self._type, self.function, self._signature, self.options, self.fields, cast(Submits, queue))

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Submit a task with these arguments; `await handle.result()` returns what the function returns."""
        queue: Submits = current.queue() if self._queue is None else self._queue
        return (await queue.submit(self.new(*args, **kwargs))).decoded(self.decode_result)

    def _copy(self, fields: TaskOptions) -> Self:
        return type(self)(self._type, self.function, self._signature, self.options, fields, self._queue)


class SyncTypedTask(_Typed[P, R]):
    """A typed task on a `SyncQueue`."""

    def __init__(self, queue: SubmitsBlocking, task: _Typed[P, R], fields: TaskOptions | None = None) -> None:
        super().__init__(task.type, task.function, task.signature, task.options, task.fields | (fields or {}))
        self._queue = queue

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> SyncTaskHandle[R]:
        """Submit a task with these arguments; `handle.result()` returns what the function returns."""
        return self._queue.submit(self.new(*args, **kwargs)).decoded(self.decode_result)

    def _copy(self, fields: TaskOptions) -> Self:
        return type(self)(self._queue, self, fields)
