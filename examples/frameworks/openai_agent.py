"""A forecaster made with the OpenAI Agents SDK. A person approves what it publishes; nothing is paid for twice.

    pip install 'shiftwork[openai-agents]'
    python openai_agent.py sqlite:///forecasts.db

Instead of calling a model, this example follows a script. With `Agent(model="gpt-5", …)` all else stays the same.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from shiftwork import open_queue
from shiftwork.integrations.openai_agents import run
from shiftwork.worker import Context, Fail, Worker

calls: list[str] = []
SCRIPT = [("weather", '{"city": "Oslo"}'), ("publish", '{"text": "Rain in Oslo."}')]


class ScriptedModel(Model):
    """Simulates a model: two tool calls, then a sentence."""

    async def get_response(self, *given: Any, **_: Any) -> ModelResponse:
        calls.append("model")
        done = sum(item.get("type") == "function_call_output" for item in given[1])
        used = Usage(requests=1, input_tokens=120, output_tokens=30, total_tokens=150)
        if done < len(SCRIPT):
            tool, arguments = SCRIPT[done]
            called = ResponseFunctionToolCall(
                type="function_call", call_id=f"call_{done}", name=tool, arguments=arguments
            )
            return ModelResponse(output=[called], usage=used, response_id=None)
        text = ResponseOutputText(type="output_text", text="It rains in Oslo.", annotations=[])
        said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[said], usage=used, response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@function_tool
async def weather(city: str) -> str:
    """Look up the weather in a city."""
    calls.append("weather")
    return f"rain in {city}"


@function_tool(needs_approval=True)
async def publish(text: str) -> str:
    """Publish a forecast."""
    calls.append("publish")
    return f"published: {text}"


agent = Agent[None](name="forecaster", model=ScriptedModel(), tools=[weather, publish])
worker = Worker(concurrency=2)


@worker.handler("forecast")
async def forecast(ctx: Context) -> str:
    question = f"How is the weather in {ctx.payload['city']}?"
    result = await run(ctx, agent, question, run_config=RunConfig(tracing_disabled=True))
    if ctx.task.attempts == 0:
        raise Fail("network", "the connection broke after everything was paid for")
    return str(result.final_output)


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
