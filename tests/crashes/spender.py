"""Spends forever under every kind of budget: `python -m tests.crashes.spender URL`. Made to be killed.

A line is printed after each completion.
"""

import asyncio
import sys

from shiftwork import Queue


async def main(url: str) -> None:
    async with Queue.open(url) as queue:
        await queue.agents.register(id="spender", max_concurrent_tasks=None, budget_remaining_usd=1000)
        await queue.runtimes.report_gone("spender")  # what the process before this one held
        await asyncio.gather(produce(queue), *(consume(queue) for _ in range(3)))


async def produce(queue: Queue) -> None:
    task = {"type": "code", "estimated_cost_usd": 0.10, "tree_budget_usd": 0.50}
    while True:
        await queue.submit_dag({"tasks": [task] * 3, "budget_ceiling_usd": 0.25})


async def consume(queue: Queue) -> None:
    while True:
        for claim in await queue.claim("spender", 3, start=True):
            await queue.heartbeat(claim.token, usage={"cost_usd": 0.01})
            await queue.spawn(claim.token, [{"type": "code", "estimated_cost_usd": 0.05}])
            await queue.complete(claim.token, usage={"cost_usd": 0.02})
            print("completed", flush=True)  # noqa: T201 -- for the test that reads it


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
