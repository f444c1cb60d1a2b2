"""A forecaster made with the Claude Agent SDK. A person approves what it publishes; a killed worker's talk goes on.

    pip install 'shiftwork[claude-agent-sdk]'
    ANTHROPIC_API_KEY=… python claude_agent.py sqlite:///forecasts.db

This example calls a real model, by the Claude Code that comes with the SDK.
"""

import asyncio
import sys
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, tool

from shiftwork import open_queue
from shiftwork.integrations.claude_agent_sdk import run
from shiftwork.worker import Context, Fail, Worker

calls: list[str] = []


@tool("weather", "Look up the weather in a city", {"city": str})
async def weather(arguments: dict[str, Any]) -> dict[str, Any]:
    calls.append("weather")
    return {"content": [{"type": "text", "text": f"rain in {arguments['city']}"}]}


@tool("publish", "Publish a forecast", {"text": str})
async def publish(arguments: dict[str, Any]) -> dict[str, Any]:
    calls.append("publish")
    return {"content": [{"type": "text", "text": f"published: {arguments['text']}"}]}


options = ClaudeAgentOptions(
    system_prompt="You look up the weather, then publish a forecast of one sentence, then repeat it.",
    mcp_servers={"desk": create_sdk_mcp_server("desk", tools=[weather, publish])},
    allowed_tools=["mcp__desk__weather", "mcp__desk__publish"],
    tools=[],
    setting_sources=[],
)
worker = Worker(concurrency=2)


@worker.handler("forecast")
async def forecast(ctx: Context) -> str | None:
    question = f"How is the weather in {ctx.payload['city']}?"
    result = await run(ctx, question, options, needs_approval=["mcp__desk__publish"])
    if ctx.task.attempts == 0:
        raise Fail("network", "the connection broke after everything was paid for")
    return result.result


async def main(url: str) -> None:
    async with open_queue(url) as queue:
        task = await queue.submit(type="forecast", payload={"city": "Oslo"}, retry={"strategy": "immediate"})
        await worker.run(queue, until_idle=True)
        (asked,) = await queue.approvals.list()
        print(asked.question)
        await queue.approvals.answer(task.id, {"approved": True})
        await worker.run(queue, until_idle=True)
        print((await queue.result(task.id)).data)
        print(f"{len(calls)} calls of tools: {', '.join(calls)}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
