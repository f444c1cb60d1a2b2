"""Fires schedules minute by minute forever, and prints each finished minute: `python -m tests.crashes.firer URL START`.

Made to be killed. A schedule fires for each minute since START, and an event for each of its tasks.
"""

import asyncio
import sys

from shiftwork import Queue
from shiftwork.testing import MovedClock
from shiftwork.triggers import maintenance as triggers
from tests.crashes.busy_client import say


async def main(url: str, start: str) -> None:
    clock = MovedClock(float(start))
    async with Queue.open(url, clock=clock) as queue:
        while True:
            clock.advance(60)
            await triggers.run(queue.engine)
            say("done", str(int(clock())))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
