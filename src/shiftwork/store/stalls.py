"""Detects stalls in which this process could not see the agents' heartbeats."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable

from shiftwork.model import silence
from shiftwork.model.silence import Stall

log = logging.getLogger("shiftwork.store")

STALL_SEC = 3.0
"""So long without an answer of the store is a stall, unless its answers always take their time."""

TYPICAL_TIMES = 4
"""An answer that takes this many times the usual is late, whatever the usual is: a slow network is not an outage."""

JUMP_SEC = 1.0
MAX_STALLS = 1000


_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def passed() -> float:
    """Seconds, those included in which the machine was suspended, where the system counts them."""
    return time.clock_gettime(_CLOCK)


class StallDetector:
    """Compares the time between two answers of the store with the time that should have passed.

    Maintenance asks the store a few times a second, apart from what it does meanwhile: its own slow work is not a
    stall. Each judgement of silence begins with a `check`, so that no stall goes unnoticed between two of those
    questions.
    """

    def __init__(
        self, now: Callable[[], float], *, watches_clock: bool = True, steady: Callable[[], float] = passed
    ) -> None:
        self.stalls: list[Stall] = []
        self.watches_clock = watches_clock
        """Not where a test moves the store's clock."""
        self.steady = steady
        self._now = now
        self._last: tuple[float, float] | None = None
        self._took: deque[float] = deque(maxlen=9)
        self._lock = threading.Lock()

    def begin(self) -> None:
        """From now on the store is asked all the time."""
        with self._lock:
            self._last = self.steady(), self._now()

    def end(self) -> None:
        """It is asked no longer: that nothing is heard means nothing."""
        with self._lock:
            self._last = None

    def record(self, took: float) -> None:
        """The store has answered a short question, after this many seconds."""
        with self._lock:
            self._compare()
            self._took.append(took)

    def check(self) -> None:
        """The store has just answered: note a stall that came before."""
        with self._lock:
            self._compare()

    def rests_until(self, since: float, span: float) -> float:
        """Until when someone last heard of at `since` must not be taken for dead; 0 if there is no reason to wait."""
        with self._lock:
            return silence.rests_until(self.stalls, since, span)

    def missed(self, since: float) -> float:
        """For how many of the seconds since then no one could be heard."""
        with self._lock:
            return silence.missed(self.stalls, since)

    def forgive(self, stall: Stall) -> None:
        """No one could be heard in this stretch of the store's time."""
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
            why = f"nothing was heard for {gap:.0f} s"
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
        """One that was noticed in two ways is one."""
        if self.stalls and stall.start <= self.stalls[-1].end:
            last = self.stalls.pop()
            stall = Stall(min(last.start, stall.start), max(last.end, stall.end), last.why)
        self.stalls = [*self.stalls[-MAX_STALLS + 1 :], stall]
