"""A program on the store itself, run with the code of either version: it produces or works until it is stopped.

`python agent.py URL produce|work NAME`: prints the id of every task whose submission or completion was acknowledged.
"""

import asyncio
import signal
import sys

from shiftwork import Queue
from shiftwork.maintenance import loop
from shiftwork.model.errors import StoreUnavailable


async def main(url: str, role: str, name: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with Queue.open(url, migrate=False) as queue:
        if role == "work":
            await queue.agents.register(id=name, max_concurrent_tasks=None)
        while not stopping.is_set():
            try:
                done = await (_produce(queue) if role == "produce" else _work(queue, name))
            except StoreUnavailable:  # the migration of a file holds its writers up
                continue
            print("\n".join(done), flush=True)  # noqa: T201  # read by the test
            await asyncio.sleep(0.02)


async def _produce(queue: Queue) -> list[str]:
    made = await queue.submit_many([{"type": "code"}] * 3)
    child = await queue.submit(type="code", dependencies=[task.id for task in made])
    alone = await queue.submit_many([{"type": "code"}] * 5)
    return [child.id, *(task.id for task in (*made, *alone))]


async def _work(queue: Queue, name: str) -> list[str]:
    """Work, and run maintenance, since any process may count and remove for all."""
    await loop.run_once(queue.engine, force=True)
    taken = await queue.claim(name, 8, start=True)
    await queue.batch.complete([{"token": assignment.token} for assignment in taken])
    return [assignment.id for assignment in taken]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
