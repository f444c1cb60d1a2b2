"""When a notification that did not arrive is sent again, when it is given up, and how long its sink rests."""

from __future__ import annotations

from typing import Literal, NamedTuple

MOST_ATTEMPTS = 12
GIVE_UP_SEC = 86_400.0
"""From its first attempt; nothing is sent again later by itself."""

FIRST_WAIT_SEC = 5.0
LONGEST_WAIT_SEC = 6 * 3600.0
FREE_FAILURES = 2
"""Failures in a row that say nothing about the sink: one bad notification must not slow the others down."""

LONGEST_REST_SEC = 300.0
AT_ONCE = 4
"""Of one sink in one process; one that fails is tried with a single delivery."""


class Outcome(NamedTuple):
    """How one attempt ended; `error` None is success. The texts are ours: no address stands in them."""

    error: str | None = None
    retry_after: float | None = None
    """How long the receiver has asked to be left alone."""
    gone: bool = False
    """The receiver wants no more of them, ever."""


class Next(NamedTuple):
    """What becomes of a delivery."""

    status: Literal["pending", "sent", "dead"]
    next_at: float


def after(outcome: Outcome, attempts: int, now: float, give_up_at: float, chance: float) -> Next:
    """`chance` is from 0 to 1."""
    if outcome.error is None:
        return Next("sent", now)
    wait = max(backoff(attempts, chance), min(outcome.retry_after or 0.0, LONGEST_WAIT_SEC))
    if outcome.gone or attempts >= MOST_ATTEMPTS or now + wait > give_up_at:
        return Next("dead", now)
    return Next("pending", now + wait)


def backoff(attempts: int, chance: float) -> float:
    """5 s, 20 s, 80 s, 5 min, 21 min, 85 min, then every 6 hours, each up to a fifth longer."""
    wait = min(FIRST_WAIT_SEC * 4 ** (attempts - 1), LONGEST_WAIT_SEC)
    return float(wait * (1 + chance / 5))


def rest(outcome: Outcome, failures: int) -> float:
    """How long a sink is left alone after so many failures in a row."""
    asked = min(outcome.retry_after or 0.0, LONGEST_WAIT_SEC)
    if failures <= FREE_FAILURES:
        return asked
    return max(asked, min(FIRST_WAIT_SEC * 2.0 ** min(failures - FREE_FAILURES - 1, 10), LONGEST_REST_SEC))


def at_once(failures: int) -> int:
    """How many deliveries of a sink are under way together."""
    return AT_ONCE if failures <= FREE_FAILURES else 1
