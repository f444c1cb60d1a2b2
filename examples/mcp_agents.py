"""Agents that use the queue over MCP only: a planner and two workers, each with its own server.

    python mcp_agents.py sqlite:///agents.db              # or postgresql://…, or http://127.0.0.1:8080

It needs `pip install 'shiftwork[mcp]'`. A model would choose the calls; these agents follow a script. Every call is one
that a model could make, and its answer is all they know.
"""

import asyncio
import sys
from typing import Any

from mcp import Client, StdioServerParameters

PLAN = [
    {"type": "research", "key": "facts", "prompt": "Find out who wrote the first program."},
    {
        "type": "write",
        "key": "page",
        "prompt": "Write a page about it.",
        "dependencies": ["facts"],
        "context_refs": ["task:facts:output"],
    },
]


def server(store: str, *options: str) -> StdioServerParameters:
    """The server as in a client's configuration."""
    return StdioServerParameters(
        command=sys.executable, args=["-m", "shiftwork", "mcp", "--store", store, "--keep", "5m", *options]
    )


async def call(agent: Client, tool: str, **arguments: Any) -> Any:
    """Return the tool's answer; an error contains the next step."""
    done = await agent.call_tool(tool, arguments)
    if done.is_error:
        raise RuntimeError(done.structured_content["error"]["next"])
    return done.structured_content


async def plan(store: str) -> list[str]:
    """The planner submits work and does not know the workers."""
    async with Client(server(store, "--role", "submitter", "--agent", "planner")) as agent:
        submitted = await call(agent, "submit", title="A page", tasks=PLAN)
        return [task["task_id"] for task in submitted["tasks"]]


async def work(store: str, kind: str) -> None:
    """A worker does one task of its type, and stores paid results before it continues."""
    async with Client(server(store, "--role", "worker", "--agent", f"{kind}er", "--type", kind)) as agent:
        task = None
        while task is None:
            task = (await call(agent, "claim", wait_sec=20)).get("task")
        token = task["token"]
        await call(agent, "heartbeat", token=token, progress="reading")
        if kind == "research":
            await call(agent, "checkpoint", token=token, name="search", result={"name": "Ada Lovelace"})
            await call(agent, "complete", token=token, data={"name": "Ada Lovelace"})
        else:
            name = task["inputs"][0]["data"]["name"]
            await call(agent, "complete", token=token, text=f"The first program was written by {name}.")


async def main(store: str) -> None:
    tasks = await plan(store)
    await asyncio.gather(work(store, "research"), work(store, "write"))
    async with Client(server(store, "--role", "submitter")) as agent:
        for task_id in tasks:
            seen = await call(agent, "get", task_id=task_id)
            print(f"{seen['type']}: {seen['status']}", seen["result"].get("text", ""))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
