"""A forecaster made with the Claude Agent SDK, which runs the Claude Code that comes with it."""

import functools
import os
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, tool

from shiftwork.integrations.claude_agent_sdk import run
from shiftwork.worker import Context, Worker
from tests.integrations.agents import tools

worker = Worker("forecaster", concurrency=1)
MODEL = "claude-sonnet-4-5"


@tool("weather", "The weather in a city", {"city": str})
async def weather(_: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": await tools.use("weather")}]}


@tool("publish", "Publish a forecast", {"text": str})
async def publish(_: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": await tools.use("publish")}]}


def options() -> ClaudeAgentOptions:
    """Only the two tools, and no traffic except to the test's model."""
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1"}
    folder = os.environ["FAKE_HOME"]
    return ClaudeAgentOptions(
        model=MODEL,
        tools=[],
        mcp_servers={"desk": create_sdk_mcp_server("desk", tools=[weather, publish])},
        strict_mcp_config=True,
        allowed_tools=["mcp__desk__weather", "mcp__desk__publish"],
        setting_sources=[],
        cwd=folder,
        env={
            **quiet,
            "ANTHROPIC_BASE_URL": tools.server(),
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": f"{folder}/claude",
        },
    )


@worker.handler("forecast")
async def forecast(ctx: Context) -> str | None:
    careful = ["mcp__desk__publish"] if ctx.payload.get("careful") else []
    result = await run(ctx, "How is the weather in Oslo?", options(), needs_approval=careful)
    await tools.end()
    return result.result


work = functools.partial(tools.work, worker)
