"""A process whose own clock is wrong: `python -m tests.outages.skewed URL SECONDS`. Prints the queue's time."""

import asyncio
import sys
import time


def skew(seconds: float) -> None:
    """Both clocks of this process are off, by different amounts."""
    real, steady = time.time, time.monotonic
    time.time = lambda: real() + seconds
    time.monotonic = lambda: steady() + 7 * seconds


async def main(url: str) -> None:
    from shiftwork import Queue  # noqa: PLC0415 -- after the clocks were changed

    async with Queue.open(url) as queue:
        task = await queue.submit(type="code")
        print(queue.now(), (await queue.get(task.id)).created_at)  # noqa: T201 -- for the test that reads it


if __name__ == "__main__":
    skew(float(sys.argv[2]))
    asyncio.run(main(sys.argv[1]))
