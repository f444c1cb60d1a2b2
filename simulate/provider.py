"""A provider of calls: allows a number of calls a minute and refuses more, with `Retry-After`."""

from __future__ import annotations

WINDOW_SEC = 60.0


class Provider:
    """One account at a provider, limited like real ones: by calls per minute of its own clock."""

    def __init__(self, name: str, per_minute: int) -> None:
        self.name = name
        self.per_minute = per_minute
        self.served = 0
        self.refused = 0
        self._window = -1
        self._used = 0

    def call(self, now: float) -> float | None:
        """Return None if the call is served, otherwise the seconds after which to retry."""
        window = int(now // WINDOW_SEC)
        if window != self._window:
            self._window, self._used = window, 0
        if self._used < self.per_minute:
            self._used += 1
            self.served += 1
            return None
        self.refused += 1
        return (window + 1) * WINDOW_SEC - now
