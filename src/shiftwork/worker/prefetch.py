"""Decides how many tasks a worker claims beyond its slots: with short handlers, claiming takes longer than the work.

It claims no more than it can start within a tenth of a second, judging by its last handlers. A worker with slow
handlers claims nothing ahead, so that others can take the work.
"""

from __future__ import annotations

BEGIN_WITHIN_SEC = 0.1
"""Tasks claimed ahead should start within this time."""

SHORT_SEC = 0.05
"""Nothing is claimed ahead if handlers take longer than this on average."""

LATE_SEC = 1.0
"""Tasks claimed ahead that have not started after this long are released."""

MAX_HELD = 1000
"""The most tasks held, in slots and ahead: two claims' worth, one in work while the other is claimed or reported."""

_SHARE = 1 / 8
"""The weight of the last handler in the average."""


class ClaimAhead:
    """Measures one worker. Nothing is claimed ahead before about twenty short handlers."""

    def __init__(self, slots: int, *, allowed: bool) -> None:
        self._slots = slots
        self._most = max(0, MAX_HELD - slots) if allowed else 0
        self._average_sec = LATE_SEC

    def ended(self, seconds: float) -> None:
        """Record how long a handler took. A single slow one soon loses its weight in the average."""
        self._average_sec += (min(seconds, LATE_SEC) - self._average_sec) * _SHARE

    def was_late(self) -> None:
        """Start measuring again, because a task claimed ahead had to be released."""
        self._average_sec = LATE_SEC

    @property
    def most(self) -> int:
        """The number of tasks that may be held beyond the slots."""
        if self._average_sec > SHORT_SEC or not self._most:
            return 0
        return min(self._most, int(self._slots * BEGIN_WITHIN_SEC / max(self._average_sec, 1e-6)))
