"""How many tasks a worker claims beyond its slots: with short handlers, asking for work takes longer than doing it.

It claims no more than it can begin within a tenth of a second, as its last handlers went. A worker whose handlers take
long claims nothing ahead, so that others can have the work.
"""

from __future__ import annotations

BEGIN_WITHIN_SEC = 0.1
"""What is claimed ahead would begin this soon."""

SHORT_SEC = 0.05
"""Handlers that take longer than this on average are worth no claim ahead."""

LATE_SEC = 1.0
"""What was claimed ahead and has not begun after this long is given back."""

MAX_HELD = 1000
"""Slots and what is claimed ahead: two claims, of which one is worked on while the other is claimed or reported."""

_SHARE = 1 / 8
"""What the last handler counts in the average."""


class ClaimAhead:
    """The measure of one worker. Until about twenty handlers were short, nothing is claimed ahead."""

    def __init__(self, slots: int, *, allowed: bool) -> None:
        self._slots = slots
        self._most = max(0, MAX_HELD - slots) if allowed else 0
        self._average_sec = LATE_SEC

    def ended(self, seconds: float) -> None:
        """A handler took this long. One that took minutes is soon forgotten: the average is of many."""
        self._average_sec += (min(seconds, LATE_SEC) - self._average_sec) * _SHARE

    def was_late(self) -> None:
        """Something that was claimed ahead had to be given back: begin anew."""
        self._average_sec = LATE_SEC

    @property
    def most(self) -> int:
        """Tasks that may be held beyond the slots."""
        if self._average_sec > SHORT_SEC or not self._most:
            return 0
        return min(self._most, int(self._slots * BEGIN_WITHIN_SEC / max(self._average_sec, 1e-6)))
