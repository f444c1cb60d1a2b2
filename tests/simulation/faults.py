"""The faults of a run and their times, all drawn from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import apsw

from tests.simulation.disk import Crash, Disk

EPOCH = 1_765_800_000.0


class Rates(NamedTuple):
    """The probability of each fault."""

    crash: float = 0.0
    """Of turns of the writer: the process dies at one of its statements, at its commit, or after it."""
    refusal: float = 0.0
    """Of turns: a statement or the commit fails (the disk is full, the file is locked)."""
    lost_answer: float = 0.0
    """Of committed calls: done, and its caller does not learn of it."""
    lost_request: float = 0.0
    death: float = 0.0
    """Of an agent's calls: it forgets everything, before, during or after the call."""
    delay: float = 0.0
    """Of waits: seconds instead of milliseconds."""
    clock_step: float = 0.0


NONE = Rates()


class Faults:
    """The faults of one run."""

    def __init__(self, chance: Random, disk: Disk, log: Callable[[str], None]) -> None:
        self.chance = chance
        self.disk = disk
        self.log = log
        self.rates = NONE
        self.offset = self.highest = EPOCH
        self.happened: dict[str, int] = {}
        self.unforeseen: Callable[[BaseException], None] = _raise
        """Who hears of an error that should not be."""

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.offset

    def hits(self, kind: str) -> bool:
        """Draw whether the fault happens this time."""
        rate: float = getattr(self.rates, kind)
        if not rate or self.chance.random() >= rate:
            return False
        self.happened[kind] = self.happened.get(kind, 0) + 1
        return True

    def delay(self) -> float:
        return self.chance.uniform(0.5, 40) if self.hits("delay") else self.chance.uniform(0, 0.02)

    async def pause(self) -> None:
        """Delay a call before it reaches the store."""
        if self.hits("delay"):
            await asyncio.sleep(self.chance.uniform(0.1, 30))
        elif self.chance.random() < 0.3:
            await asyncio.sleep(0)

    def step_clock(self) -> None:
        if self.hits("clock_step"):
            step = self.chance.choice([-3600.0, -90.0, -5.0, 5.0, 90.0, 3600.0])
            self.log(f"clock {step:+.0f} s")
            self.offset += step
            self.highest = max(self.highest, self.offset)

    def end(self) -> None:
        """End all faults. Move the clock to the latest time ever written, so that nothing waits for hours."""
        self.rates, self.offset = NONE, self.highest

    def arm(self) -> None:
        """Choose the faults of the next transactions."""
        self.step_clock()
        if self.hits("crash"):
            self._doom(Crash())
        elif self.hits("refusal"):
            self._doom(self.chance.choice([apsw.FullError, apsw.IOError, apsw.BusyError])("injected"))

    def _doom(self, doom: BaseException) -> None:
        self.disk.doom = doom
        self.disk.doom_in = None if self.chance.random() < 0.3 else self.chance.randint(1, 40)

    def crash_after_commit(self) -> None:
        """Crash after the commit, so that the caller gets no answer."""
        if isinstance(self.disk.doom, Crash):
            self.disk.dead = True
            raise self.disk.doom

    def loses_answer(self) -> bool:
        return self.hits("lost_answer")


def _raise(error: BaseException) -> None:
    raise error
