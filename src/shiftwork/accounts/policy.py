"""Windows of accounts: how they fill and reset, how many more tasks fit, and which account to use first.

A window begins with the first use after its reset, as subscription windows do. A task's usage is unknown until it ends,
so running tasks are expected to use as much as earlier ones in this window, or in the previous one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shiftwork.accounts.model import Unit
from shiftwork.providers.limit_signal import WindowState

WEEK_SEC = 7 * 86_400.0
LENGTHS = {"minute": 60.0, "five_hour": 5 * 3_600.0, "day": 86_400.0, "seven_day": WEEK_SEC}
MAX_ALLOWED_SHARE = 0.999
MAX_RESET_SEC = 366 * 86_400.0
"""A reset reported further away than this is ignored."""
CLEARLY_MORE = 2.0
"""A task waits for another agent if its account has this many times more left."""


class Window(NamedTuple):
    """A window, and how much of it is used."""

    name: str
    model: str = ""
    length_sec: float | None = None
    unit: Unit | None = None
    capacity: float = 1.0
    used: float = 0.0
    claims: int = 0
    """Claims since the window began."""
    per_claim: float = 0.0
    """Average usage of a claim in the previous window."""
    resets_at: float | None = None

    @property
    def utilization(self) -> float:
        return self.used / self.capacity

    @property
    def is_used_up(self) -> bool:
        return self.used >= self.capacity


def length_of(name: str) -> float | None:
    """The length of a window by its name, including names such as `seven_day_opus` or `minute_tokens`."""
    return next((length for known, length in LENGTHS.items() if name == known or name.startswith(f"{known}_")), None)


def name_for(wait_sec: float) -> str:
    """Guess the window of a refusal that states only its reset: the shortest one that fits."""
    return next((name for name, length in LENGTHS.items() if name != "day" and wait_sec <= length), "seven_day")


def current(window: Window, now: float) -> Window:
    """The current state: a window whose reset has passed is unused."""
    if window.resets_at is None or window.resets_at > now:
        return window
    return _restarted(window)


def _restarted(window: Window) -> Window:
    mean = window.used / window.claims if window.claims else window.per_claim
    return window._replace(used=0.0, claims=0, per_claim=mean, resets_at=None)


def count(window: Window, now: float, *, claims: int = 0, tokens: int = 0, usd: float = 0.0) -> Window:
    """Add the usage of claims and attempts; the first use begins the window."""
    window = current(window, now)
    more = {"tokens": float(tokens), "usd": usd, "tasks": float(claims), None: 0.0}[window.unit]
    begins = window.resets_at is None and window.length_sec is not None
    at = now + (window.length_sec or 0.0) if begins else window.resets_at
    return window._replace(used=window.used + more, claims=window.claims + claims, resets_at=at)


def report(window: Window, state: WindowState, now: float) -> Window:
    """The window as reported by the provider, which overrides our own count."""
    window = current(window, now)
    at = state.resets_at
    at = at if at is not None and now < at <= now + MAX_RESET_SEC else None
    if at is not None and window.resets_at is not None and at > window.resets_at + (window.length_sec or 3_600.0) / 2:
        window = _restarted(window)
    used = window.used if state.utilization is None else max(0.0, state.utilization) * window.capacity
    if state.status == "rejected":
        used = max(used, window.capacity)
    elif state.utilization is not None:  # above 1 while the provider still serves blocks no one
        used = min(used, MAX_ALLOWED_SHARE * window.capacity)
    return window._replace(used=used, resets_at=at or window.resets_at)


def room(windows: Sequence[Window], now: float, running: int) -> float:
    """How many more tasks are expected to fit into all of these windows; at least one if anything is left."""
    return min((_room(current(window, now), running) for window in windows), default=math.inf)


def _room(window: Window, running: int) -> float:
    left = window.capacity - window.used
    if left <= 0:
        return 0
    if window.unit == "tasks":
        return math.floor(left)
    mean = _per_claim(window, running)
    fits = math.inf if mean <= 0 else math.floor(left / mean) - running
    return max(fits, 0 if running else 1)


def _per_claim(window: Window, running: int) -> float:
    ended = window.claims - running
    if ended > 0:
        return window.used / ended
    return window.per_claim or (window.used / window.claims if window.claims else 0.0)


def would_lapse(windows: Sequence[Window], now: float, running: int) -> bool:
    """Whether each window is used up more slowly than its time passes, so that some quota would be left at its reset.

    Running work counts as used. A window that has not begun would lapse entirely.
    """
    return all(_is_behind(current(window, now), now, running) for window in windows)


def _is_behind(window: Window, now: float, running: int) -> bool:
    if window.resets_at is None or not window.length_sec:
        return not window.is_used_up
    expected = window.used + running * (0.0 if window.unit == "tasks" else _per_claim(window, running))
    passed = 1 - (window.resets_at - now) / window.length_sec
    return expected / window.capacity <= passed


class Urgency(NamedTuple):
    """How urgently an account should be used: the greatest goes first."""

    lasting: float
    """The quota left in its windows of hours and days, per second until their nearest reset."""
    short: float
    """The same for its minute windows. They refill quickly, so they only break ties."""


def urgency(windows: Sequence[Window], now: float) -> Urgency:
    """The quota left per second until the nearest reset; use the account with the most first."""
    known = [current(window, now) for window in windows]
    lasting = [window for window in known if not _is_short(window)]
    return Urgency(_left_per_second(lasting, now), _left_per_second([w for w in known if _is_short(w)], now))


def _is_short(window: Window) -> bool:
    return window.length_sec is not None and window.length_sec <= LENGTHS["minute"]


def _left_per_second(windows: Sequence[Window], now: float) -> float:
    left = min((1 - window.utilization for window in windows), default=1.0)
    resets = [
        now + (window.length_sec or WEEK_SEC) if window.resets_at is None else window.resets_at for window in windows
    ]
    return left / max(1.0, min(resets, default=now + WEEK_SEC) - now)


def has_clearly_more(theirs: Sequence[Window], mine: Sequence[Window], now: float) -> bool:
    """Whether work should go to their account even though the agent on mine asked first."""
    return urgency(theirs, now).lasting >= CLEARLY_MORE * urgency(mine, now).lasting
