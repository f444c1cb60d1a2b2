"""What a failure report says about a rate limit besides its reason: that there was one, and how long to wait."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from shiftwork.policy.retry import LONGEST_DELAY_SEC, retry_after

TOO_MANY_REQUESTS = 429
_STATUS = frozenset({"status", "status_code", "http_status", "code"})
_SECONDS = frozenset({"retry_after", "retry_after_sec", "retry_after_seconds"})
_MILLISECONDS = frozenset({"retry_after_ms"})
_NESTED = frozenset({"headers", "response", "error"})
"""Objects inside the data of a report in which the same is looked for, once."""

_DATE = re.compile(r"retry[-_ ]after[\"']?\s*[:=]?\s*[\"']?([a-z]{3,9},? [^\"'\n]{8,40}?gmt)", re.IGNORECASE)


def reported(data: Any) -> bool:
    """Whether the data of a report holds the status of a rate limit."""
    return any(name in _STATUS and str(value) == str(TOO_MANY_REQUESTS) for name, value in _fields(data))


def asked(error: str | None, data: Any, now: float) -> float | None:
    """Seconds that the provider asks to wait, named in the data or else in the error text: a number or an HTTP date."""
    for name, value in _fields(data):
        if (seconds := _seconds(name, value, now)) is not None:
            return min(max(0.0, seconds), LONGEST_DELAY_SEC)
    found = retry_after(error)
    if found is not None:
        return found
    dated = _DATE.search(error) if error else None
    return None if dated is None else _until(dated[1], now)


def _fields(data: Any) -> Iterator[tuple[str, Any]]:
    """Names as we write them, `Retry-After` as retry_after."""
    inner: list[Any] = [data]
    for depth in range(2):
        inner = [found for found in inner if isinstance(found, Mapping)]
        for record in inner:
            yield from ((str(name).lower().replace("-", "_"), value) for name, value in record.items())
        if depth == 0:
            inner = [value for record in inner for name, value in record.items() if str(name).lower() in _NESTED]


def _seconds(name: str, value: Any, now: float) -> float | None:
    if name not in _SECONDS | _MILLISECONDS or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _until(value, now) if isinstance(value, str) else None
    if math.isnan(number):
        return None
    return number / 1000 if name in _MILLISECONDS else number


def _until(text: str, now: float) -> float | None:
    """Seconds until an HTTP date; one that has passed asks for no wait."""
    try:
        at = parsedate_to_datetime(text.strip())
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(0.0, at.timestamp() - now), LONGEST_DELAY_SEC)
