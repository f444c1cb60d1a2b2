"""Limits the open HTTP sessions per token."""

from __future__ import annotations

from collections.abc import Callable

from shiftwork.model.errors import TooManyRequests

IDLE_SEC = 600.0
"""A session without a request for this long ends; a new one costs the client one call."""
MAX_COUNT = 1000
MAX_PER_TOKEN = 100
AGAIN_SEC = 30.0


class _OpenSession:
    """One session: its token, its running requests, and when the last one ended."""

    __slots__ = ("ended_at", "holder", "under_way")

    def __init__(self, owner: str, now: float) -> None:
        self.holder = owner
        self.under_way = 0
        self.ended_at = now


class Sessions:
    """The tokens' open sessions, as far as known: the SDK ends idle ones."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.most_of_token = MAX_PER_TOKEN
        self._time = time
        self._open: dict[str, _OpenSession] = {}

    def check(self, owner: str) -> None:
        """Whether this token may open one more."""
        now = self._time()
        for session in [name for name, each in self._open.items() if _is_over(each, now)]:
            del self._open[session]
        if sum(each.holder == owner for each in self._open.values()) >= self.most_of_token:
            raise TooManyRequests(
                f"this token has {self.most_of_token} sessions open, the maximum",
                hint="End sessions that are not used any more with DELETE, or wait until they have been idle.",
                retry_after=AGAIN_SEC,
            )

    def opened(self, session: str, owner: str) -> None:
        self._open[session] = _OpenSession(owner, self._time())

    def begin(self, session: str) -> None:
        if (found := self._open.get(session)) is not None:
            found.under_way += 1

    def end(self, session: str) -> None:
        if (found := self._open.get(session)) is not None:
            found.under_way -= 1
            found.ended_at = self._time()

    def close(self, session: str) -> None:
        self._open.pop(session, None)


def _is_over(each: _OpenSession, now: float) -> bool:
    return not each.under_way and now - each.ended_at > IDLE_SEC
