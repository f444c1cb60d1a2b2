"""Decides whether to try the single statement for the plain case: each miss costs a round trip."""

from __future__ import annotations

import time

MISSES = 2
"""Consecutive misses after which a workspace is assumed to have special work."""
REST_SEC = 1.0
"""How long that is assumed."""


class FastPath:
    """Records how the fast path of one verb fared, by workspace."""

    def __init__(self) -> None:
        self._misses: dict[str, int] = {}
        self._rests_until: dict[str, float] = {}

    def is_likely(self, workspace: str) -> bool:
        return not self._rests_until or time.monotonic() >= self._rests_until.get(workspace, 0.0)

    def record(self, workspace: str, *, is_plain: bool) -> None:
        if is_plain:
            self._misses.pop(workspace, None)
            self._rests_until.pop(workspace, None)
            return
        misses = self._misses[workspace] = self._misses.get(workspace, 0) + 1
        if misses >= MISSES:
            self._rests_until[workspace] = time.monotonic() + REST_SEC
