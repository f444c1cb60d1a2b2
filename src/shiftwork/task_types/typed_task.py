"""A typed function as a task: its payload is checked and encoded from the arguments, its result decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from shiftwork.model.errors import InputError, InvalidPayload
from shiftwork.model.task import NewTask
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


class TypedTask(Generic[P, R]):
    """What `@worker.task` makes of a function: `P` are its parameters without the context, `R` is its result."""

    def __init__(self, type: str, function: Callable[..., Any], signature: Signature, options: TypeOptions) -> None:
        self._type = type
        self._signature = signature
        self.function = function
        """The function as it was written, for tests that call it directly."""
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
        """What a worker declares of it to the queue."""
        found = self._signature
        return TypeDeclaration(
            name=self._type,
            payload_schema=found.payload_schema,
            result_schema=found.result_schema,
            options=self.options,
        )

    def encode(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return the payload of a task with these arguments; refuses what does not fit the parameters."""
        try:
            return self._signature.encode(args, kwargs)
        except DoesNotFit as error:
            raise InvalidPayload(f"the payload does not fit type {self._type!r}: {error}", where="payload") from None

    def decode_result(self, data: Any) -> R:
        """Return a result as the type that the function declares."""
        try:
            decoded: R = self._signature.decode_result(data)
        except DoesNotFit as error:
            hint = "The task was done by other code; read the result with `queue.result` to see it as it is."
            raise InputError(
                f"the result does not fit type {self._type!r}: {error}", where="result", hint=hint
            ) from None
        return decoded

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Return a task with these arguments, for batches, DAGs and `ctx.spawn`."""
        return NewTask(type=self._type, payload=self.encode(*args, **kwargs))
