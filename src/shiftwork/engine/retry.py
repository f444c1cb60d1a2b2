"""Decides whether a failed attempt is retried, after what delay, and with which models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, assert_never

from shiftwork.model import reasons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shiftwork.settings.model import Retry

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
"""Reasons that a retry cannot fix: retried only if `retry_on` names them."""

MAX_DELAY_SEC = 366 * 86_400.0
"""Without a cap, doubling would exceed the range of dates, then of floats."""


class RetryDecision(NamedTuple):
    """The decision after a failure."""

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
    """Why a reason is not retried. In the lists, a reason's own name takes precedence over its class."""
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
    cap = MAX_DELAY_SEC if retry.max_delay_sec is None else retry.max_delay_sec
    seconds = min(_plain_delay(retry, max(1, failures)), cap)
    if retry.jitter and retry.strategy != "fixed":  # its report says how long
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
        return MAX_DELAY_SEC


def _between(bounds: tuple[float, float], roll: float) -> float:
    low, high = bounds
    return low + (high - low) * roll


def models(preferences: Sequence[str], fallback: Sequence[str], failures: int) -> tuple[str, ...]:
    """Models for the next attempt: from the second failure on, the fallback if one is set."""
    return tuple(fallback) if fallback and failures >= 2 else tuple(preferences)


def fallback(models: Sequence[str], failures: int) -> tuple[str, ...]:
    """The remaining fallback models when all models for the next attempt are in cooldown."""
    return () if failures >= 2 else tuple(models)
