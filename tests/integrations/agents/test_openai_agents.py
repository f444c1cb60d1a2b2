"""OpenAI Agents SDK: handoffs, MCP tools and agents inside tools, over a failed attempt."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    ToolOutputText,
    Usage,
    function_tool,
    handoff,
)
from agents.items import TResponseOutputItem
from agents.mcp import MCPServer
from mcp.types import CallToolResult, GetPromptResult, ListPromptsResult, TextContent
from mcp.types import Tool as McpTool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from shiftwork import Queue
from shiftwork.integrations.openai_agents import run
from shiftwork.testing import run_until_idle
from shiftwork.worker import Context, Fail, Worker

QUIET = RunConfig(tracing_disabled=True)


def call(tool: str, arguments: str = "{}") -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(type="function_call", call_id=f"call_{tool}", name=tool, arguments=arguments)


def words(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[content])


class Scripted(Model):
    """Answers one after the other, and counts."""

    def __init__(self, *answers: TResponseOutputItem) -> None:
        self.answers = list(answers)
        self.model = "gpt-5"

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        return ModelResponse([self.answers.pop(0)], Usage(1, 10, output_tokens=2, total_tokens=12), None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class Desk(MCPServer):
    """An MCP server in this process."""

    def __init__(self, used: list[str]) -> None:
        super().__init__()
        self.used = used

    @property
    def name(self) -> str:
        return "desk"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, *_: Any, **__: Any) -> list[McpTool]:
        return [McpTool(name="stamp", input_schema={"type": "object", "properties": {}})]

    async def call_tool(self, tool_name: str, *_: Any, **__: Any) -> CallToolResult:
        self.used.append(tool_name)
        return CallToolResult(content=[TextContent(type="text", text="stamped")])

    async def list_prompts(self) -> ListPromptsResult:
        return ListPromptsResult(prompts=[])

    async def get_prompt(self, *_: Any, **__: Any) -> GetPromptResult:
        return GetPromptResult(messages=[])


async def fail_once(worker: Worker, queue: Queue, **task: Any) -> str:
    """Run a task whose first attempt fails once the agent has answered; return its id."""
    submitted = await queue.submit({"type": "t", "retry": {"strategy": "immediate"}, **task})
    await run_until_idle(worker, queue)
    return submitted.id


def failing_after(made: Agent[None]) -> Worker:
    worker = Worker(concurrency=1)

    @worker.handler("t")
    async def handle(ctx: Context) -> Any:
        result = await run(ctx, made, "go", run_config=QUIET)
        if ctx.task.attempts == 0:
            raise Fail("network", "the answer did not arrive")
        return result.final_output

    return worker


async def test_handoff_and_mcp_tools_are_not_repeated(store_url: str) -> None:
    used: list[str] = []

    @function_tool
    def look() -> ToolOutputText:
        """Look out of the window."""
        used.append("look")
        return ToolOutputText(text="rain")

    second = Scripted(call("look"), call("stamp"), words("it rains"))
    clerk = Agent[None](name="clerk", model=second, tools=[look], mcp_servers=[Desk(used)])
    first = Scripted(call("transfer_to_clerk"))
    lead = Agent[None](name="lead", model=first, handoffs=[handoff(clerk)])
    async with Queue.open(store_url) as queue:
        task = await queue.get(await fail_once(failing_after(lead), queue))
        steps = [step.name for step in await queue.steps.list(task.id)]
    assert task.result is not None
    assert (task.status, task.result.data) == ("completed", "it rains")
    assert (used, first.answers, second.answers) == (["look", "stamp"], [], [])
    assert task.tokens_used == {"input": 40, "output": 8}
    assert steps == [
        "model gpt-5",
        "model gpt-5#2",
        "tool look call_look",
        "model gpt-5#3",
        "tool stamp call_stamp",
        "model gpt-5#4",
    ]


async def test_agent_inside_a_tool_is_one_step(sqlite_url: str) -> None:
    inner = Scripted(words("rain"))
    helper = Agent[None](name="helper", model=inner)
    outer = Scripted(call("ask_helper", '{"input": "weather?"}'), words("it rains"))
    tool = helper.as_tool("ask_helper", "Ask the helper")
    lead = Agent[None](name="lead", model=outer, tools=[tool])
    async with Queue.open(sqlite_url) as queue:
        task = await queue.get(await fail_once(failing_after(lead), queue))
        steps = [step.name for step in await queue.steps.list(task.id)]
    assert task.status == "completed"
    assert (inner.answers, outer.answers) == ([], [])
    assert steps == ["model gpt-5", "tool ask_helper call_ask_helper", "model gpt-5#2"]


async def test_agent_of_the_user_is_not_changed(sqlite_url: str) -> None:
    @function_tool
    def look() -> str:
        """Look."""
        return "rain"

    lead = Agent[None](name="lead", model=Scripted(words("rain")), tools=[look])
    before = (lead.model, list(lead.tools), look.on_invoke_tool)
    async with Queue.open(sqlite_url) as queue:
        await fail_once(failing_after(lead), queue)
    assert (lead.model, list(lead.tools), look.on_invoke_tool) == before


@pytest.mark.parametrize("value", [{"a": (1, 2)}, object(), None, [b"x"]])
async def test_any_output_of_a_tool_can_be_stored(sqlite_url: str, value: object) -> None:
    @function_tool
    def look() -> Any:
        """Look."""
        return value

    lead = Agent[None](name="lead", model=Scripted(call("look"), words("done")), tools=[look])
    async with Queue.open(sqlite_url) as queue:
        task = await queue.get(await fail_once(failing_after(lead), queue))
    assert task.status == "completed"
