"""Takes one task and works on it until told to finish: `python -m tests.crashes.worker URL AGENT [RUNTIME]`.

With a runtime, others on this machine can see which process it is. Prints the claim's token, waits for a line,
completes, and prints what it was answered.
"""

import asyncio
import sys

from shiftwork import Queue
from shiftwork.agents import presence
from shiftwork.model.errors import ShiftworkError


async def main(url: str, agent: str, runtime: str | None = None) -> None:
    async with Queue.open(url) as queue:
        if runtime is not None:
            await presence.announce(queue.engine, queue.workspace, runtime, agent_id=agent)
        (assignment,) = await queue.claim(agent, start=True, runtime_id=runtime)
        print(assignment.token, flush=True)  # noqa: T201 -- for the test that reads it
        await asyncio.to_thread(sys.stdin.readline)
        try:
            answer = (await queue.complete(assignment.token, {"by": agent})).status
        except ShiftworkError as error:
            answer = error.code
        print(answer, flush=True)  # noqa: T201 -- for the test that reads it


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
