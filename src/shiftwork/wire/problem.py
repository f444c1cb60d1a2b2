"""Errors as HTTP answers: problem+json with stable codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shiftwork.engine.assignment import Assignment, AssignmentRecord
from shiftwork.model.errors import (
    ArtifactDamaged,
    ArtifactsUnavailable,
    ConflictError,
    Forbidden,
    InputError,
    LifespanFailed,
    Malformed,
    NotFound,
    OperationTimeout,
    Overloaded,
    QueueFull,
    RangeNotSatisfiable,
    ShiftworkError,
    SnapshotsUnavailable,
    StoreError,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    UnsupportedEncoding,
    VersionConflict,
    from_dict,
)

MEDIA_TYPE = "application/problem+json"

# The first entry that matches an error's class counts.
STATUS: tuple[tuple[type[ShiftworkError], int], ...] = (
    (Malformed, 400),
    (TooLarge, 413),
    (UnsupportedEncoding, 415),
    (RangeNotSatisfiable, 416),
    (InputError, 422),
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (VersionConflict, 412),
    (QueueFull, 429),
    (ConflictError, 409),
    (OperationTimeout, 503),
    (LifespanFailed, 503),
    (TooManyRequests, 429),
    (Overloaded, 503),
    (ArtifactDamaged, 502),
    (ArtifactsUnavailable, 501),
    (SnapshotsUnavailable, 501),
    (StoreError, 503),
)


class Problem(msgspec.Struct, omit_defaults=True):
    """An error in the form of RFC 9457, with our code, a hint, and the facts."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str = ""
    where: str | None = None
    request_id: str | None = None
    facts: dict[str, Any] = {}


def status_of(error: type[ShiftworkError]) -> int:
    return next((status for kind, status in STATUS if issubclass(error, kind)), 500)


def of(error: ShiftworkError, request_id: str | None = None) -> Problem:
    return Problem(
        type=f"/errors/{error.code}",
        title=error.code.replace("_", " "),
        status=status_of(type(error)),
        code=error.code,
        detail=error.what,
        hint=error.hint,
        where=error.where,
        request_id=request_id,
        facts=msgspec.to_builtins(error.facts, enc_hook=str),
    )


def error_of(problem: Mapping[str, Any]) -> ShiftworkError:
    """Convert a server's problem to the error that a client raises."""
    what = problem.get("detail") or problem.get("title") or "no reason given"
    if problem.get("code") == INTERNAL.code and problem.get("request_id"):
        what = f"{what}, request id {problem['request_id']}"
    fields = {"code": problem.get("code"), "what": what}
    rest = {name: problem.get(name) for name in ("where", "hint") if problem.get(name) is not None}
    return from_dict({**(problem.get("facts") or {}), **rest, **fields})


INTERNAL = Problem(
    type="/errors/internal",
    title="internal",
    status=500,
    code="internal",
    detail="internal server error",
    hint="See the server's log for this request id; check whether the request took effect.",
)


def wrong_method(method: str, path: str, allowed: str, request_id: str) -> Problem:
    """The problem for a known path with a method it does not support."""
    return Problem(
        type="/errors/wrong_method",
        title="wrong method",
        status=405,
        code="wrong_method",
        detail=f"{path} does not support {method}",
        hint=f"It supports {allowed}.",
        request_id=request_id,
    )


def encode(value: Any) -> Any:
    """Encoder hook: an error inside an answer becomes a problem, an assignment its record."""
    if isinstance(value, Assignment):
        return value.as_record()
    if isinstance(value, ShiftworkError):
        return of(value)
    raise NotImplementedError(type(value))


def decode(kind: type, value: Any) -> Any:
    """Decoder hook: a problem inside an answer becomes an error, a record an assignment."""
    if issubclass(kind, Assignment):
        return Assignment.of_record(msgspec.convert(value, AssignmentRecord))
    if issubclass(kind, ShiftworkError):
        return error_of(value)
    raise NotImplementedError(kind)


def schema(kind: type) -> dict[str, Any]:
    """JSON Schema hook: an error inside an answer is a problem, an assignment a record."""
    if issubclass(kind, Assignment):
        return {"$ref": "#/components/schemas/AssignmentRecord"}
    if issubclass(kind, ShiftworkError):
        return {"$ref": "#/components/schemas/Problem"}
    raise NotImplementedError(kind)
