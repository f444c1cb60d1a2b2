"""Task types, as callers see them: schemas of payload and result, options, and drift."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from shiftwork.model.bounds import MAX_NUMBER
from shiftwork.model.task import Fields, Name

JsonSchema = dict[str, Any]
Attempts = Annotated[int, Meta(ge=1, le=1000)]
Duration = Annotated[float, Meta(gt=0, le=MAX_NUMBER)]
Boost = Annotated[float, Meta(ge=-100, le=100)]
Delivery = Literal["at_least_once", "at_most_once"]
Concurrency = Annotated[int, Meta(ge=1, le=10**6)]
Requests = Annotated[int, Meta(ge=1, le=10**9)]
Window = Annotated[float, Meta(ge=1, le=366 * 86_400)]

_LIMITS = ("concurrency", "requests", "window_sec")


class TypeOptions(Fields):
    """Options declared in a type's code: settings of the type, and a limit shared by all workers.

    Each has the name of its setting or of its field in the limit.
    """

    max_attempts: Attempts | None = None
    timeout_sec: Duration | None = None
    retry: dict[str, Any] | None = None
    type_boost: Boost | None = None
    delivery: Delivery | None = None
    concurrency: Concurrency | None = None
    """Concurrent claims, over all workers."""
    requests: Requests | None = None
    """Claims in each window, over all workers."""
    window_sec: Window | None = None

    def settings(self) -> dict[str, Any]:
        """These options as a level of settings."""
        return {name: value for name, value in self._set_options() if name not in _LIMITS}

    def limit(self) -> dict[str, Any]:
        """These options as the fields of a limit; empty if there are none."""
        return {name: value for name, value in self._set_options() if name in _LIMITS}

    def _set_options(self) -> list[tuple[str, Any]]:
        named = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, value) for name, value in named if value is not None]


class Options(TypedDict, total=False):
    """The fields of `TypeOptions` as keyword arguments."""

    max_attempts: int
    timeout_sec: float
    retry: dict[str, Any]
    type_boost: float
    delivery: Delivery
    concurrency: int
    requests: int
    window_sec: float


class TypeDeclaration(Fields):
    """A type as declared by a worker's code."""

    name: Name
    payload_schema: JsonSchema | None = None
    """The schema of payloads; null accepts any."""
    result_schema: JsonSchema | None = None
    options: TypeOptions = msgspec.field(default_factory=TypeOptions)


class TypeDrift(msgspec.Struct, frozen=True):
    """A difference between what is in force for a type and what code declares."""

    what: str
    """`payload_schema`, `result_schema`, an option, or a setting."""
    text: str
    agent_id: str | None = None
    """The worker that declares it differently."""


class TaskType(msgspec.Struct, frozen=True):
    """A type of task as the queue checks it."""

    name: str
    payload_schema: JsonSchema | None
    result_schema: JsonSchema | None
    options: TypeOptions
    set_by: Literal["worker", "operator"]
    """Who set it: workers do not change what an operator has saved."""
    changed_at: float
    changed_by: str
    drift: list[TypeDrift] = []
