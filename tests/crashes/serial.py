"""Submits, claims and ends tasks of a few serial keys forever: `python -m tests.crashes.serial URL`.

Made to be killed. Prints a line for each task that it has ended.
"""

import asyncio
import itertools
import sys

from shiftwork import Queue

KEYS = 2


async def main(url: str) -> None:
    async with Queue.open(url) as queue:
        await queue.agents.register(id="serial", max_concurrent_tasks=None)
        await queue.runtimes.report_gone("serial")  # what the process before this one held
        await asyncio.gather(*(live(queue, number) for number in range(4)))


async def live(queue: Queue, number: int) -> None:
    for turn in itertools.count():
        await queue.submit_many([{"type": "code", "serial_key": f"key-{n % KEYS}"} for n in range(2)])
        for assignment in await queue.claim("serial", 2, start=True):
            if (turn + number) % 4 == 0:
                await queue.release(assignment.token)
            elif (turn + number) % 4 == 1:
                await queue.cancel(assignment.id)
            else:
                await queue.complete(assignment.token)
            print(assignment.id, flush=True)  # noqa: T201  # for the test that reads it


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
