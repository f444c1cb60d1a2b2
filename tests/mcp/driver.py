"""A client in a separate process, to be killed: claims over stdio, prints its task, and idles forever."""

import asyncio
import sys

from tests.mcp.talking import over_stdio


async def main(store: str) -> None:
    async with over_stdio(store, "--agent", "crab") as agent:
        task = await agent.take(wait_sec=20)
        sys.stdout.write(task["token"] + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
