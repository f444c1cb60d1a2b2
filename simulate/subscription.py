"""A subscription: allows a number of tokens per five hours and per week, and refuses more."""

from __future__ import annotations

FIVE_HOURS = 5 * 3600.0


class Window:
    """One window of a limit. It begins with the first call after its reset."""

    def __init__(self, name: str, length: float, capacity: int) -> None:
        self.name = name
        self.length = length
        self.capacity = capacity
        self.used = 0
        self.resets_at: float | None = None

    @property
    def left(self) -> int:
        return self.capacity - self.used


class Subscription:
    """One account at a provider, limited like a subscription. Every answer reports how much of it is used."""

    def __init__(self, five_hours: int, week: int, week_sec: float) -> None:
        self._five = Window("5h", FIVE_HOURS, five_hours)
        self._week = Window("7d", week_sec, week)
        self.served = 0
        self.refused = 0
        self.used = 0
        self.idle_five = 0
        """Tokens unused at resets of 5-hour windows, as far as the weekly window would have allowed them."""
        self.idle_week = 0
        """Tokens unused at the end of the week."""
        self.resets = 0

    def call(self, tokens: int, now: float) -> bool:
        """Return whether the call is served."""
        self._reset(now)
        if self.is_used_up(now):
            self.refused += 1
            return False
        for window in (self._five, self._week):
            window.used += tokens
            window.resets_at = window.resets_at or now + window.length
        self.served += 1
        self.used += tokens
        return True

    def is_used_up(self, now: float) -> bool:
        self._reset(now)
        return self._five.left <= 0 or self._week.left <= 0

    def headers(self, now: float) -> dict[str, str]:
        """Return headers like Anthropic's: how much of each window is used, and when it resets."""
        self._reset(now)
        found = {}
        for window in (self._five, self._week):
            found[f"anthropic-ratelimit-unified-{window.name}-utilization"] = f"{window.used / window.capacity:.6f}"
            if window.resets_at is not None:
                found[f"anthropic-ratelimit-unified-{window.name}-reset"] = f"{window.resets_at:.0f}"
        full = [window.resets_at for window in (self._five, self._week) if window.left <= 0 and window.resets_at]
        return found | ({"retry-after": f"{max(full) - now:.0f}"} if full else {})

    def close(self, now: float) -> None:
        """End the week."""
        self.idle_week = max(0, self._week.left)
        self._reset(now)

    def _reset(self, now: float) -> None:
        if self._five.resets_at is not None and now >= self._five.resets_at:
            self.idle_five += max(0, min(self._five.left, self._week.left))
            self.resets += 1
            self._five.used, self._five.resets_at = 0, None
        if self._week.resets_at is not None and now >= self._week.resets_at:
            self._week.used, self._week.resets_at = 0, None
