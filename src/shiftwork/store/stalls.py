"""Detects stalls in which this process could not see the agents' heartbeats."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable

from shiftwork.model import heartbeat_grace
from shiftwork.model.heartbeat_grace import Stall

log = logging.getLogger("shiftwork.store")

STALL_SEC = 3.0
"""This long without an answer from the store is a stall, unless its answers are always slow."""

TYPICAL_TIMES = 4
"""An answer is late after this many times the usual delay: a slow network is not an outage."""

JUMP_SEC = 1.0
MAX_STALLS = 1000


_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def passed() -> float:
    """Steady seconds, including time in which the machine was suspended, if the system counts it."""
    return time.clock_gettime(_CLOCK)


class StallDetector:
    """Compares the time between two answers of the store with the time that should have passed.

    Maintenance queries the store a few times a second, independently of its jobs: slow jobs are not stalls. Every
    decision about silence begins with a `check`, so that no stall between two queries goes unnoticed.
    """

    def __init__(
        self, now: Callable[[], float], *, watches_clock: bool = True, steady: Callable[[], float] = passed
    ) -> None:
        self.stalls: list[Stall] = []
        self.watches_clock = watches_clock
        """False if a test moves the store's clock."""
        self.steady = steady
        self._now = now
        self._last: tuple[float, float] | None = None
        self._took: deque[float] = deque(maxlen=9)
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start watching: from now on, the store is queried regularly."""
        with self._lock:
            self._last = self.steady(), self._now()

    def end(self) -> None:
        """Stop watching: gaps are no longer stalls."""
        with self._lock:
            self._last = None

    def record(self, took: float) -> None:
        """Record that the store answered a short query after this many seconds."""
        with self._lock:
            self._compare()
            self._took.append(took)

    def check(self) -> None:
        """Record a stall that ended just now, with an answer of the store."""
        with self._lock:
            self._compare()

    def rests_until(self, since: float, span: float) -> float:
        """Until when an agent last heard from at `since` must not be considered dead; 0 if there is no reason to."""
        with self._lock:
            return heartbeat_grace.rests_until(self.stalls, since, span)

    def missed(self, since: float) -> float:
        """The number of seconds since then in which no agent could be heard."""
        with self._lock:
            return heartbeat_grace.missed(self.stalls, since)

    def forgive(self, stall: Stall) -> None:
        """Record a stretch of the store's time in which no agent could be heard."""
        with self._lock:
            self._record(stall)

    def _compare(self) -> None:
        if self._last is None:
            return
        last_steady, last_now = self._last
        steady, now = self.steady(), self._now()
        self._last = steady, now
        gap = steady - last_steady
        jump = now - last_now - gap if self.watches_clock else 0.0
        if jump < -JUMP_SEC:
            log.warning("the store's clock went back by %.0f s", -jump)
            self.stalls = [Stall(stall.start + jump, stall.end + jump, stall.why) for stall in self.stalls]
            last_now += jump
        if gap > self._longest():
            why = f"the store did not answer for {gap:.0f} s"
        elif jump > JUMP_SEC:
            why = f"the clock went ahead by {jump:.0f} s"
        else:
            return
        log.warning("%s; silent agents keep their work for one heartbeat timeout", why)
        self._record(Stall(last_now, now, why))

    def _longest(self) -> float:
        usual = statistics.median(self._took) if self._took else 0.0
        return max(STALL_SEC, TYPICAL_TIMES * usual)

    def _record(self, stall: Stall) -> None:
        """Merge overlapping stalls: one may be noticed in two ways."""
        if self.stalls and stall.start <= self.stalls[-1].end:
            last = self.stalls.pop()
            stall = Stall(min(last.start, stall.start), max(last.end, stall.end), last.why)
        self.stalls = [*self.stalls[-MAX_STALLS + 1 :], stall]
