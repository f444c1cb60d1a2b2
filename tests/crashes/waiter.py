"""Parks and frees tasks forever, and prints what was acknowledged: `python -m tests.crashes.waiter URL`.

Made to be killed. Each line is printed after the answer it reports: `parked ID`, `freed ID`, `completed ID`.
"""

import asyncio
import sys

from shiftwork import Queue
from tests.crashes.busy_client import say


async def main(url: str) -> None:
    async with Queue.open(url) as queue:
        await queue.agents.register(id="waiter", max_concurrent_tasks=None)
        while True:
            await queue.submit(type="code")
            for taken in await queue.claim("waiter", 2, start=True):
                event = f"go {taken.id}"
                if (await queue.waits.wait(taken.token, "go", signal=event)).status == "met":
                    await queue.complete(taken.token)
                    say("completed", taken.id)
                    continue
                say("parked", taken.id)
                await queue.waits.signal(event)
                say("freed", taken.id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
