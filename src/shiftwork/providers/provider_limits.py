"""Finds the provider limit behind a failure: its kind, its scope, and when work can continue.

This is the only place that decides this. Structured facts come first (a status, headers, an error's type, the reset of
a window), then the error text. Settings can turn this off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from shiftwork.model import reasons
from shiftwork.model.bounds import MAX_NAME
from shiftwork.providers import provider_messages, reset_times
from shiftwork.providers.provider_messages import Kind, Scope
from shiftwork.providers.reset_times import MAX_SEC, Reset

if TYPE_CHECKING:
    from shiftwork.settings.model import RateLimit

INDICATORS = ("rate limit", "429", "too many requests", "quota exceeded", "retry-after")
"""Words that mean a rate limit anywhere in the text, under `rate_limit.matching: substrings`."""

PROVIDER_ERROR = "provider_error"
"""The key under which our workers put the facts of an error into the data of a report."""

_VAGUE = frozenset({None, reasons.AGENT_ERROR, reasons.CRASH, reasons.TRANSIENT_API})
"""Reasons that a status overrides."""

_NO_CAUSE = frozenset({None, reasons.AGENT_ERROR})
"""Reasons that text overrides too: the agent named no cause."""

_REASONS: dict[Kind, str] = {
    "rate_limit": reasons.RATE_LIMIT,
    "overloaded": reasons.RATE_LIMIT,
    "quota": reasons.RATE_LIMIT,
    "auth": reasons.AUTH_FAILURE,
}


class Signal(NamedTuple):
    """A provider's limit, as read from a failure."""

    kind: Kind
    scope: Scope = "model"
    wait_sec: float | None = None
    """How long to wait, if the provider named a time."""
    resets_at: float | None = None
    """The reset time it named, in seconds since 1970."""
    window: str | None = None
    """The window that is used up, e.g. five_hour."""
    utilization: float | None = None
    """How far that window is used, from 0 to 1."""
    provider: str | None = None
    account: str | None = None
    model: str | None = None
    """The model of the refused call, if reported."""


class ClassifiedFailure(NamedTuple):
    """The effective reason of a failure, and the provider's limit, if there was one."""

    reason: str
    signal: Signal | None = None


def classify_failure(
    reason: str | None, error: str | None, data: Any, limit: RateLimit, now: float, zone: tzinfo = UTC
) -> ClassifiedFailure:
    """Find the effective reason. Text overrides only a vague reason such as `agent_error`; facts override more."""
    if reason == reasons.AUTH_FAILURE:
        refused = read(error, data, now, zone) if limit.classify else None
        return ClassifiedFailure(reason, refused if refused is not None and refused.kind == "auth" else None)
    if reason not in _VAGUE:
        found = read(error, data, now, zone) if reason == reasons.RATE_LIMIT else None
        reported = _complete(found, error, data, now, zone) if reason == reasons.RATE_LIMIT else None
        return ClassifiedFailure(str(reason), reported)
    plain = ClassifiedFailure(reasons.AGENT_ERROR if reason is None else reason)
    if not limit.classify:
        return plain
    signal = read(error, data, now, zone) if reason in _NO_CAUSE or _facts(data, now) is not None else None
    if limit.matching == "substrings" and _indicated(error):
        return ClassifiedFailure(reasons.RATE_LIMIT, _complete(signal, error, data, now, zone))
    return plain if signal is None else ClassifiedFailure(_REASONS[signal.kind], signal)


def _complete(found: Signal | None, error: str | None, data: Any, now: float, zone: tzinfo) -> Signal:
    """The signal of a rate limit that the agent itself reported, completed from the report."""
    if found is not None and found.kind in {"rate_limit", "quota"}:
        return found
    reset = _named_reset(error, data, now, zone, 0)
    signal = Signal("rate_limit", wait_sec=reset.wait_sec, resets_at=reset.at) if reset else Signal("rate_limit")
    return _with_names(signal, data)


def _indicated(error: str | None) -> bool:
    text = (error or "").lower()
    return any(indicator in text for indicator in INDICATORS)


def wait_for(limit: RateLimit, signal: Signal, waits: int, roll: float) -> float:
    """Seconds to wait at the `waits`-th consecutive limit: the time the provider named, otherwise doubling.

    A used-up quota has no reset, so it waits the longest time at once. A named time is also bounded: it comes from an
    agent's text and holds back the whole fleet.
    """
    if signal.wait_sec is not None:
        return min(signal.wait_sec, limit.max_window_sec)
    wait = limit.max_wait_sec if signal.kind == "quota" else _doubled(limit, max(1, waits))
    low, high = limit.jitter_range
    return wait * (low + (high - low) * roll)


def _doubled(limit: RateLimit, waits: int) -> float:
    try:
        return min(limit.base_sec * 2.0 ** (waits - 1), limit.max_wait_sec)
    except OverflowError:
        return limit.max_wait_sec


def is_named(signal: Signal) -> bool:
    """Whether the provider named a time, or reported a limit that a short wait cannot end."""
    return signal.wait_sec is not None or signal.kind == "quota"


def read(error: str | None, data: Any, now: float, zone: tzinfo = UTC) -> Signal | None:
    """Read a provider's limit from the facts and the text of a failure."""
    found = _read(error, data, now, zone)
    return None if found is None else _with_names(found, data)


def _with_names(signal: Signal, data: Any) -> Signal:
    """Add the provider, account and model of the call, if our workers reported them."""
    facts = data.get(PROVIDER_ERROR) if isinstance(data, Mapping) else None
    if not isinstance(facts, Mapping):
        return signal
    known = {name: facts.get(name) for name in ("provider", "account", "model")}
    usable = {name: value for name, value in known.items() if isinstance(value, str) and 0 < len(value) <= MAX_NAME}
    return signal._replace(**usable)  # type: ignore[arg-type]  # all three are strings


def _read(error: str | None, data: Any, now: float, zone: tzinfo) -> Signal | None:
    text = provider_messages.excerpt(error) if error else ""
    message = provider_messages.find(text) if text else None
    facts = _facts(data, now)
    if facts is None and message is None:
        return None
    if facts is None or (
        facts.kind == "rate_limit" and facts.window is None and message is not None and _is_specific(message)
    ):
        assert message is not None
        found = Signal(message.kind, message.scope, window=message.window)
    else:
        found = facts
    reset = _named_reset(text, data, now, zone, message.start if message else 0)
    if facts is not None and facts.wait_sec is not None:
        reset = Reset(facts.wait_sec, facts.resets_at)
    if reset is None:
        return found
    if found.kind == "quota":  # a quota with a reset is a rate limit
        found = Signal("rate_limit")
    return found._replace(wait_sec=reset.wait_sec, resets_at=reset.at)


def _is_specific(message: provider_messages.Message) -> bool:
    """Whether the text is more specific than status 429, which many kinds of limit share."""
    return message.kind == "quota" or (message.kind == "rate_limit" and message.scope == "account")


def _named_reset(error: str | None, data: Any, now: float, zone: tzinfo, start: int) -> Reset | None:
    """The time named in the data, otherwise in the text: first after the message, then before it."""
    for name, value in _fields(data):
        if (reset := _field_reset(name, value, now)) is not None:
            return reset
    if (reset := _from_headers(data, now)) is not None:
        return reset
    text = provider_messages.excerpt(error) if error else ""
    line = text.rfind("\n", 0, start) + 1
    times = list(reset_times.find(text, now, zone)) if text else []
    after = [reset for place, reset in times if place >= line]
    return after[0] if after else times[-1][1] if times else None


_STATUS = frozenset({"status", "status_code", "http_status", "code", "api_error_status", "error_status"})
_SECONDS = frozenset({"retry_after", "retry_after_sec", "retry_after_seconds", "resets_in_seconds"})
_MILLISECONDS = frozenset({"retry_after_ms", "retry_delay_ms"})
_TIMES = frozenset({"resets_at", "reset_at"})
_NESTED = frozenset({"headers", "response_headers", "response", "error", PROVIDER_ERROR, "rate_limit_info"})
"""Objects nested in the data of a report that are also searched."""

_MAX_DEPTH = 4
_MAX_FIELDS = 500
_BY_STATUS: dict[int, tuple[Kind, Scope]] = {
    401: ("auth", "account"),
    402: ("quota", "account"),
    403: ("auth", "account"),
    429: ("rate_limit", "model"),
    503: ("overloaded", "provider"),
    529: ("overloaded", "provider"),
}
_TYPE_NAMES = frozenset({"type", "code", "error", "error_type", "status", "name"})
_BY_TYPE: dict[str, tuple[Kind, Scope]] = {
    **dict.fromkeys(("insufficient_quota", "billing_error", "billing_hard_limit_reached"), ("quota", "account")),
    **dict.fromkeys(("usage_limit_reached", "usage_limit_exceeded"), ("rate_limit", "account")),
    **dict.fromkeys(
        ("overloaded_error", "overloaded", "server_is_overloaded", "slow_down"), ("overloaded", "provider")
    ),
    **dict.fromkeys(("rate_limit_error", "rate_limit", "rate_limit_exceeded"), ("rate_limit", "model")),
    **dict.fromkeys(("resource_exhausted", "throttlingexception", "toomanyrequestsexception"), ("rate_limit", "model")),
    **dict.fromkeys(("authentication_error", "authentication_failed", "invalid_api_key"), ("auth", "account")),
    **dict.fromkeys(("permission_error", "unauthenticated", "expiredtokenexception"), ("auth", "account")),
}
_MODEL_WINDOWS = ("opus", "sonnet", "haiku")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MAX_NAME_LENGTH = 80


def _facts(data: Any, now: float) -> Signal | None:
    """The limit in the data of a report: a status, an error's type, or a window's state."""
    if (window := _window(data, now)) is not None:
        return window
    found: list[tuple[Kind, Scope]] = []
    for name, value in _fields(data):
        if name in _STATUS and (status := _number(value)) in _BY_STATUS:
            found.append(_BY_STATUS[int(status or 0)])
    for name, value in _fields(data, inside=True):
        if name in _TYPE_NAMES and isinstance(value, str) and value.lower() in _BY_TYPE:
            found.insert(0, _BY_TYPE[value.lower()])
    if not found:
        return None
    kind, scope = found[0]
    if ("rate_limit", "model") in found and kind == "auth":  # some providers answer a rate limit with 403
        kind, scope = "rate_limit", "model"
    if kind == "auth" and _from_headers(data, now) is not None:
        kind, scope = "rate_limit", "model"
    return Signal(kind, scope)


def _window(data: Any, now: float) -> Signal | None:
    """A used-up window of a subscription, as in Claude Code's `rate_limit_event`."""
    for name, info in _fields(data):
        if name != "rate_limit_info" or not isinstance(info, Mapping):
            continue
        known = {_plain(key): value for key, value in list(info.items())[:_MAX_FIELDS]}
        if known.get("status") != "rejected":
            return None
        window = known.get("rate_limit_type")
        window = window[:_MAX_NAME_LENGTH] if isinstance(window, str) else None
        of_model = window is not None and window.endswith(_MODEL_WINDOWS)
        at = _number(known.get("resets_at"))
        reset = reset_times.until(at, now) if at else None
        reset = reset if reset is not None and 0 < reset.wait_sec <= MAX_SEC else None
        scope: Scope = "model" if of_model else "account"
        used = _number(known.get("utilization"))
        used = used if used is not None and 0 <= used <= 1 else None
        return Signal("rate_limit", scope, reset and reset.wait_sec, reset and reset.at, window, used)
    return None


def _fields(data: Any, *, inside: bool = False) -> Iterator[tuple[str, Any]]:
    """Fields of the data with names such as retry_after or resets_at; `inside` skips the outermost level."""
    level, count = [data], 0
    for depth in range(_MAX_DEPTH):
        records = [record for record in level if isinstance(record, Mapping)]
        level = []
        for record in records:
            for name, value in record.items():
                if (count := count + 1) > _MAX_FIELDS:
                    return
                plain = _plain(name)
                if depth or not inside:
                    yield plain, value
                if plain in _NESTED:
                    level.append(value)


def _plain(name: object) -> str:
    return _CAMEL.sub("_", str(name)[:_MAX_NAME_LENGTH]).lower().replace("-", "_")


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value[:_MAX_NAME_LENGTH] if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _field_reset(name: str, value: Any, now: float) -> Reset | None:
    if name in _TIMES:
        at = _number(value)
        reset = reset_times.until(at, now) if at is not None else _time(value, now)
        return reset if reset is not None and 0 < reset.wait_sec <= MAX_SEC else None
    if name not in _SECONDS | _MILLISECONDS:
        return None
    number = _number(value)
    if number is not None:
        seconds = number / 1000 if name in _MILLISECONDS else number
        return Reset(min(max(0.0, seconds), MAX_SEC))
    return _time(value, now)


def _time(value: object, now: float) -> Reset | None:
    """The forms of times in headers: an HTTP date, an ISO time, a duration."""
    if not isinstance(value, str):
        return None
    text = value.strip()[:_MAX_NAME_LENGTH]
    try:
        return reset_times.until(parsedate_to_datetime(text).timestamp(), now)
    except (TypeError, ValueError, OverflowError):
        return reset_times.when(text, now, UTC)


def _from_headers(data: Any, now: float) -> Reset | None:
    """The latest reset among `anthropic-ratelimit-*` and `x-ratelimit-*` headers with nothing remaining."""
    headers = {name: value for name, value in _fields(data) if "ratelimit" in name.replace("_", "")}
    resets = []
    for name, value in headers.items():
        if "reset" not in name:
            continue
        remaining, status = (
            headers.get(name.replace("reset", "remaining")),
            headers.get(name.replace("reset", "status")),
        )
        if _number(remaining) != 0 and status != "rejected":
            continue
        number = _number(value)
        reset = _time(value, now) if number is None else _counted(number, now)
        if reset is not None and 0 < reset.wait_sec <= MAX_SEC:
            resets.append(reset)
    return max(resets, default=None)


def _counted(number: float, now: float) -> Reset:
    """A large number is a time since 1970, a small one is seconds."""
    return reset_times.until(number, now) if number > 1e9 else Reset(max(0.0, number))
