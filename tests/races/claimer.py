"""A process of its own that takes and completes work: `python -m tests.races.claimer URL AGENT`.

Prints the id of each task once its completion was answered, and ends when there is nothing left.
"""

import asyncio
import sys

from shiftwork import Queue


async def main(url: str, agent: str) -> None:
    async with Queue.open(url) as queue:
        await queue.agents.register(id=agent, max_concurrent_tasks=None)
        print("ready", flush=True)  # noqa: T201 -- for the test that reads it
        await asyncio.to_thread(sys.stdin.readline)
        while taken := await queue.claim(agent, 3, start=True):
            for assignment in taken:
                await queue.complete(assignment.token, {"by": agent})
                print(assignment.id, flush=True)  # noqa: T201 -- for the test that reads it


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
