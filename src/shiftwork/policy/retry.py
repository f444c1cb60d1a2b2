"""Whether a failed attempt is tried again, after how long, and with which models."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple, assert_never

from shiftwork.core import reasons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shiftwork.core.settings import RateLimit, Retry

Why = Literal["retry", "no_retry_on", "never", "not_in_retry_on", "excluded_trigger", "exhausted", "poison"]

NEVER = frozenset(
    {
        reasons.INVALID_INPUT,
        reasons.SAFETY_VIOLATION,
        reasons.RESOURCE_PERMANENT,
        reasons.CANCELLED,
        reasons.DELIVERY_UNKNOWN,
        reasons.APPROVAL_REJECTED,
        reasons.EFFECT_UNKNOWN,
    }
)
"""Reasons that trying again cannot mend; only a `retry_on` that names one brings it back."""

RATE_LIMIT_INDICATORS = ("rate limit", "429", "too many requests", "quota exceeded", "retry-after")
LONGEST_DELAY_SEC = 366 * 86_400.0
"""Doubling without a cap would otherwise leave the range of dates, then of floats."""

_VAGUE = frozenset({reasons.AGENT_ERROR, reasons.CRASH, reasons.TRANSIENT_API})
_RETRY_AFTER = re.compile(
    r"retry[-_ ]after[\"']?\s*[:=]?\s*[\"']?(\d{1,9}(?:\.\d+)?)\s*"
    r"(?:(?P<ms>ms|milliseconds?)|(?P<m>m|mins?|minutes?)|(?P<h>h|hours?))?\b",
    re.IGNORECASE,
)
_UNIT_SEC = {"ms": 0.001, "m": 60.0, "h": 3600.0}


class RetryDecision(NamedTuple):
    """What follows a failure."""

    again: bool
    delay_sec: float
    why: Why


def decide_retry(
    retry: Retry,
    *,
    reason: str,
    failures: int,
    max_attempts: int,
    trigger_type: str | None,
    poisoned: bool,
    roll: float,
) -> RetryDecision:
    """Decide about the failure that made it `failures`, this one included."""
    why = _refusal(retry, reason)
    if why is None and trigger_type in retry.exclude_triggers:
        why = "excluded_trigger"
    if why is None and failures >= max_attempts:
        why = "exhausted"
    if why is None and poisoned:
        why = "poison"
    if why is not None:
        return RetryDecision(again=False, delay_sec=0.0, why=why)
    return RetryDecision(again=True, delay_sec=delay(retry, failures, roll), why="retry")


def _refusal(retry: Retry, reason: str) -> Why | None:
    """Why a reason is not retried. A reason's own name in a list beats the class it counts as."""
    for name in (reason, reasons.SAME_AS.get(reason)):
        if name in retry.no_retry_on:
            return "no_retry_on"
        if name in retry.retry_on:
            return None
    if reason in NEVER:
        return "never"
    return None if retry.otherwise == "retry" else "not_in_retry_on"


def delay(retry: Retry, failures: int, roll: float) -> float:
    """Seconds to wait after the given number of failures; `roll` in [0, 1) places the jitter."""
    cap = LONGEST_DELAY_SEC if retry.max_delay_sec is None else retry.max_delay_sec
    seconds = min(_plain_delay(retry, max(1, failures)), cap)
    if retry.jitter:
        seconds *= _between(retry.jitter_range, roll)
    return seconds


def _plain_delay(retry: Retry, failures: int) -> float:
    if retry.strategy == "immediate":
        return 0.0
    if retry.strategy == "fixed":
        return retry.initial_delay_sec
    if retry.strategy == "schedule":
        steps = retry.schedule_sec or (0.0,)
        return steps[min(failures, len(steps)) - 1]
    if retry.strategy == "exponential":
        return _doubling(retry.initial_delay_sec, retry.backoff_multiplier, failures)
    assert_never(retry.strategy)


def _doubling(first: float, factor: float, count: int) -> float:
    try:
        return first * factor ** (count - 1)
    except OverflowError:
        return LONGEST_DELAY_SEC


def _between(bounds: tuple[float, float], roll: float) -> float:
    low, high = bounds
    return low + (high - low) * roll


def models(preferences: Sequence[str], fallback: Sequence[str], failures: int) -> tuple[str, ...]:
    """Models for the next attempt: from the second failure on the fallback, where one is set."""
    return tuple(fallback) if fallback and failures >= 2 else tuple(preferences)


def fallback(models: Sequence[str], failures: int) -> tuple[str, ...]:
    """What is left to fall back on when all models for the next attempt rest."""
    return () if failures >= 2 else tuple(models)


def classify(reason: str | None, error: str | None, rate_limit: RateLimit, *, reported: bool = False) -> str:
    """The reason that counts: an error text with a rate-limit indicator, or its status, outweighs a vague reason."""
    vague = reason is None or reason in _VAGUE
    if vague and rate_limit.classify and (reported or (error and says_rate_limit(error))):
        return reasons.RATE_LIMIT
    return reasons.AGENT_ERROR if reason is None else reason


def says_rate_limit(error: str) -> bool:
    text = error.lower()
    return any(indicator in text for indicator in RATE_LIMIT_INDICATORS)


def rate_limit_wait(
    rate_limit: RateLimit, error: str | None, waits: int, roll: float, *, asked: float | None = None
) -> float:
    """Seconds to wait for the `waits`-th rate limit in a row: what the provider asked for, else doubling.

    What was asked for is bounded too: the text comes from an agent and gates the whole fleet.
    """
    asked = retry_after(error) if asked is None else asked
    if asked is not None:
        return min(asked, rate_limit.max_wait_sec)
    wait = min(_doubling(rate_limit.base_sec, 2.0, max(1, waits)), rate_limit.max_wait_sec)
    return wait * _between(rate_limit.jitter_range, roll)


def retry_after(error: str | None) -> float | None:
    """Seconds named after `retry-after` in an error text."""
    found = _RETRY_AFTER.search(error) if error else None
    if found is None:
        return None
    return min(float(found[1]) * _UNIT_SEC.get(found.lastgroup or "", 1.0), LONGEST_DELAY_SEC)
