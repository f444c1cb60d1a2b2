"""One of our agents in a separate process: `python -m tests.bridges.loki.claimer URL AGENT`.

Prints the id of each task it gets, and ends when there has been nothing for a second.
"""

import asyncio
import sys

from shiftwork import Queue


async def main(url: str, agent: str) -> None:
    async with Queue.open(url) as queue:
        print("ready", flush=True)  # noqa: T201 -- for the test that reads it
        await asyncio.to_thread(sys.stdin.readline)
        while taken := await queue.claim(agent, wait=1):
            print(taken[0].id, flush=True)  # noqa: T201 -- for the test that reads it


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
