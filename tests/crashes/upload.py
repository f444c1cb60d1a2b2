"""Uploads content forever and prints what was acknowledged: `python -m tests.crashes.upload URL`. Made to be killed."""

import asyncio
import random
import sys

from shiftwork import Queue
from shiftwork.artifacts import maintenance as job


async def main(url: str) -> None:
    async with Queue.open(url) as queue:
        await asyncio.gather(bring(queue, 1), bring(queue, 2), collect(queue))


async def bring(queue: Queue, seed: int) -> None:
    """Upload content; every other artifact is referenced and stays, the rest is collected at once."""
    chance = random.Random(f"{seed} {queue.now()}")
    while True:
        kept = await queue.artifacts.put(chance.randbytes(chance.randrange(3_000_000)), task="owner")
        print("kept", kept.id, flush=True)  # noqa: T201 -- for the test that reads it
        await queue.artifacts.put(chance.randbytes(1000))


async def collect(queue: Queue) -> None:
    while True:
        await queue.engine.store.run(lambda tx: job.collect(tx, queue.engine))
        await job.remove(queue.engine)


asyncio.run(main(sys.argv[1]))
