"""A forecaster made with Pydantic AI. A person approves what it publishes, and a failed attempt costs nothing twice.

    pip install 'shiftwork[pydantic-ai]'
    python pydantic_ai_agent.py sqlite:///forecasts.db

Instead of calling a model, this example follows a script. With `Agent("openai:gpt-5", …)` all else stays the same.
"""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from shiftwork import open_queue
from shiftwork.integrations.pydantic_ai import ShiftworkDurability, running
from shiftwork.worker import Context, Fail, Worker

calls: list[str] = []
SCRIPT = [ToolCallPart("weather", {"city": "Oslo"}), ToolCallPart("publish", {"text": "Rain in Oslo."})]


def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Simulate a model: two tool calls, then a sentence."""
    calls.append("model")
    answered = sum(isinstance(message, ModelResponse) for message in messages)
    return ModelResponse([SCRIPT[answered] if answered < len(SCRIPT) else TextPart("It rains in Oslo.")])


agent = Agent(FunctionModel(model), name="forecaster", capabilities=[ShiftworkDurability()])


@agent.tool_plain
async def weather(city: str) -> str:
    """Look up the weather in a city."""
    calls.append("weather")
    return f"rain in {city}"


@agent.tool_plain(requires_approval=True)
async def publish(text: str) -> str:
    """Publish a forecast."""
    calls.append("publish")
    return f"published: {text}"


worker = Worker(concurrency=2)


@worker.handler("forecast")
async def forecast(ctx: Context) -> str:
    with running(ctx):
        result = await agent.run(f"How is the weather in {ctx.payload['city']}?")
    if ctx.task.attempts == 0:
        raise Fail("network", "the connection broke after everything was paid for")
    return result.output


async def main(url: str) -> None:
    async with open_queue(url) as queue:
        task = await queue.submit(type="forecast", payload={"city": "Oslo"}, retry={"strategy": "immediate"})
        await worker.run(queue, until_idle=True)
        (asked,) = await queue.approvals.list()
        print(asked.question)
        await queue.approvals.answer(task.id, {"approved": True})
        await worker.run(queue, until_idle=True)
        print((await queue.result(task.id)).data)
        print(f"{calls.count('model')} calls of the model, {len(calls) - calls.count('model')} of tools")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
