"""Reads a provider's response from an exception, whichever client raised it.

Status, headers and the error's type are found by attribute names, as in httpx, requests, aiohttp, botocore and the SDKs
of OpenAI, Anthropic and Google. None of them is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from shiftwork.model import reasons
from shiftwork.providers import provider_limits
from shiftwork.providers.reset_times import MAX_SEC
from shiftwork.worker.error_text import clean

MAX_CAUSES = 5
MAX_HEADERS = 40
MAX_VALUE_LENGTH = 255
_STATUS = ("status_code", "status", "http_status", "code")
_HTTP = range(400, 600)
_FACTS = ("type", "code", "status")


def classify(error: BaseException, text: str, now: float) -> tuple[str, dict[str, Any] | None]:
    """The reason and data to report. For a provider's error, the queue's settings decide."""
    facts = read(error)
    data = None if facts is None else {provider_limits.PROVIDER_ERROR: facts}
    signal = provider_limits.read(text, data, now, local_zone(now))
    if signal is None:
        return reasons.CRASH, None
    if signal.resets_at is not None:
        data = {provider_limits.PROVIDER_ERROR: {**(facts or {}), "resets_at": signal.resets_at}}
    return reasons.AGENT_ERROR, data


def local_zone(now: float) -> Any:
    """The zone in which an agent of this machine writes clock times."""
    return datetime.fromtimestamp(now, UTC).astimezone().tzinfo or UTC


def read(error: BaseException) -> dict[str, Any] | None:
    """Status, headers and type of the response behind the exception, or behind its cause."""
    for each in _chain(error):
        try:
            if facts := _facts(each):
                return facts
        except Exception:  # noqa: BLE001, S112  # properties of the user's own classes may raise anything
            continue
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and the causes that it wraps."""
    current: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if current is None:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _facts(error: BaseException) -> dict[str, Any]:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        return _of_botocore(response)
    status = next(filter(None, (_status(owner, name) for owner in (error, response) for name in _STATUS)), None)
    found: dict[str, Any] = _typed(getattr(error, "body", None))
    if status is None:
        return found  # an error inside a stream comes with status 200
    headers = _headers(getattr(error, "headers", None)) or _headers(getattr(response, "headers", None))
    retry_after = getattr(error, "retry_after", None)
    found["status"] = status
    if headers:
        found["headers"] = headers
    if isinstance(retry_after, int | float) and 0 <= retry_after <= MAX_SEC:
        found["retry_after"] = float(retry_after)
    return found


def _status(owner: object, name: str) -> int | None:
    value = getattr(owner, name, None)
    return int(value) if isinstance(value, int) and int(value) in _HTTP else None


def _headers(headers: object) -> dict[str, str]:
    """Headers that say when to continue. No others leave this process: they may contain secrets."""
    if not isinstance(headers, Mapping) and not hasattr(headers, "items"):
        return {}
    wanted = {
        clean(str(name).lower(), MAX_VALUE_LENGTH): clean(str(value), MAX_VALUE_LENGTH)
        for name, value in headers.items()
        if str(name).lower().startswith(("retry-after", "x-codex-")) or "ratelimit" in str(name).lower()
    }
    return dict(list(wanted.items())[:MAX_HEADERS])


def _typed(body: object) -> dict[str, Any]:
    """`{"error": {"type": ...}}` as providers answer, or that inner object, as OpenAI's SDK keeps it."""
    if not isinstance(body, Mapping):
        return {}
    inner = body.get("error")
    record = inner if isinstance(inner, Mapping) else body
    known = {name: record.get(name) for name in _FACTS}
    words = {name: clean(value, MAX_VALUE_LENGTH) for name, value in known.items() if isinstance(value, str)}
    return {"error": words} if words else {}


def _of_botocore(response: Mapping[Any, Any]) -> dict[str, Any]:
    error, meta = response.get("Error"), response.get("ResponseMetadata")
    found: dict[str, Any] = {}
    if isinstance(meta, Mapping):
        status = meta.get("HTTPStatusCode")
        found |= {"status": status} if isinstance(status, int) and status in _HTTP else {}
        headers = _headers(meta.get("HTTPHeaders"))
        found |= {"headers": headers} if headers else {}
    if isinstance(error, Mapping) and isinstance(error.get("Code"), str):
        found["error"] = {"code": clean(error["Code"], MAX_VALUE_LENGTH)}
    return found
