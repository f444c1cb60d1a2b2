"""Times and durations as callers give them: a number, or a `datetime` and a `timedelta`; inside they are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, overload

from msgspec import Meta

from shiftwork.model.errors import InputError

MAX_TIME = 1e11
"""Later times have no date."""
MAX_DURATION = 1e10

Time = float | Annotated[datetime, Meta(tz=True)]
"""Seconds since 1970, or a `datetime` with a time zone; over HTTP also an ISO 8601 time with its offset."""
Duration = float | timedelta
"""Seconds, or a `timedelta`."""
DatedTime = Annotated[float, Meta(ge=-MAX_TIME, le=MAX_TIME)] | Annotated[datetime, Meta(tz=True)]
"""A time that has a date."""
Delay = Annotated[float, Meta(ge=0, le=MAX_DURATION)] | timedelta
"""From now on."""

NAIVE = "Give it a time zone: datetime.now(UTC), or 2030-01-31T12:00:00Z."
"""The hint for a time without a zone."""
_NO_ZONE = "with a timezone component"


def hint(problem: str) -> str | None:
    """The hint for a value refused as a time."""
    if _NO_ZONE in problem:
        return NAIVE
    return "Write it like 2030-01-31T12:00:00Z." if "RFC3339" in problem else None


@overload
def epoch(value: Time, where: str = ...) -> float: ...
@overload
def epoch(value: Time | None, where: str = ...) -> float | None: ...
def epoch(value: Time | None, where: str = "") -> float | None:
    """A time in seconds since 1970. A time without a zone is refused: it would depend on the machine."""
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise InputError("expected a time with a time zone", where=where or None, hint=NAIVE)
    return value.timestamp()


@overload
def seconds(value: Duration) -> float: ...
@overload
def seconds(value: Duration | None) -> float | None: ...
def seconds(value: Duration | None) -> float | None:
    """A duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def number(value: Any, where: str = "") -> Any:
    """A time or a duration as a number; any other value unchanged."""
    if isinstance(value, datetime):
        return epoch(value, where)
    return seconds(value) if isinstance(value, timedelta) else value


def in_seconds(value: Any) -> Any:
    """Settings in which durations may be given as `timedelta`."""
    if isinstance(value, Mapping):
        return {name: in_seconds(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [in_seconds(inner) for inner in value]
    return seconds(value) if isinstance(value, timedelta) else value


def shown(at: float) -> str:
    """A time for use in a sentence."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
