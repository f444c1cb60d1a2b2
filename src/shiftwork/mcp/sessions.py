"""How many sessions each token has open over HTTP, so that no token can take them all."""

from __future__ import annotations

from collections.abc import Callable

from shiftwork.core.errors import TooManyRequests

IDLE_SEC = 600.0
"""A session without a request for so long ends; the client begins another, which costs it one call."""
MOST = 1000
MOST_OF_TOKEN = 100
AGAIN_SEC = 30.0


class _Open:
    """One session: its token, the requests of it that are under way, and when the last one ended."""

    __slots__ = ("ended_at", "holder", "under_way")

    def __init__(self, holder: str, now: float) -> None:
        self.holder = holder
        self.under_way = 0
        self.ended_at = now


class Sessions:
    """The sessions of tokens that may still be open, as the SDK has them: it ends those that are idle."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.most_of_token = MOST_OF_TOKEN
        self._time = time
        self._open: dict[str, _Open] = {}

    def check(self, holder: str) -> None:
        """Whether this token may open one more."""
        now = self._time()
        for session in [name for name, each in self._open.items() if _is_over(each, now)]:
            del self._open[session]
        if sum(each.holder == holder for each in self._open.values()) >= self.most_of_token:
            raise TooManyRequests(
                f"this token has {self.most_of_token} sessions open, as many as it may",
                mend="End sessions that are not used any more with DELETE, or wait until they have been idle.",
                retry_after=AGAIN_SEC,
            )

    def opened(self, session: str, holder: str) -> None:
        self._open[session] = _Open(holder, self._time())

    def begin(self, session: str) -> None:
        if (found := self._open.get(session)) is not None:
            found.under_way += 1

    def end(self, session: str) -> None:
        if (found := self._open.get(session)) is not None:
            found.under_way -= 1
            found.ended_at = self._time()

    def close(self, session: str) -> None:
        self._open.pop(session, None)


def _is_over(each: _Open, now: float) -> bool:
    return not each.under_way and now - each.ended_at > IDLE_SEC
