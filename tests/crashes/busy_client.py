"""Works forever and prints what was acknowledged: `python -m tests.crashes.busy_client URL`. Made to be killed.

Each line is printed after the answer it reports: `submitted ID`, `claimed TOKEN`, `completed ID`, `cancelled ID`.
"""

import asyncio
import sys

from shiftwork import Queue


def say(word: str, what: str) -> None:
    print(word, what, flush=True)  # noqa: T201 -- for the test that reads it


async def main(url: str) -> None:
    async with Queue.open(url) as queue:
        await queue.agents.register(id="client", max_concurrent_tasks=None)
        await queue.runtimes.report_gone("client")  # what the process before this one held
        say("began", "-")
        await asyncio.gather(produce(queue), consume(queue), consume(queue))


async def produce(queue: Queue) -> None:
    while True:
        parent = await queue.submit(type="code", payload={"text": "x" * 500})
        say("submitted", parent.id)
        for made in await queue.submit_many([{"type": "code", "dependencies": [parent.id]}, {"type": "docs"}]):
            say("submitted", made.id)
        unwanted = await queue.submit(type="unwanted")
        say("submitted", unwanted.id)
        await queue.cancel(unwanted.id)
        say("cancelled", unwanted.id)


async def consume(queue: Queue) -> None:
    while True:
        for assignment in await queue.claim("client", 3, types=["code", "docs"], start=True):
            say("claimed", assignment.token)
            await queue.complete(assignment.token, {"by": "client"})
            say("completed", assignment.id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
