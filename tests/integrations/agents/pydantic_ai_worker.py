"""A forecaster made with Pydantic AI."""

import functools

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from shiftwork.integrations.pydantic_ai import ShiftworkDurability, running
from shiftwork.worker import Context, Worker
from tests.integrations.agents import tools

worker = Worker("forecaster", concurrency=1)


def agent(client: AsyncOpenAI, *, careful: bool) -> Agent[None, str]:
    provider = OpenAIProvider(openai_client=client)
    made = Agent(
        OpenAIResponsesModel(tools.MODEL, provider=provider),
        name="forecaster",
        capabilities=[ShiftworkDurability()],
    )

    @made.tool_plain
    async def weather(city: str) -> str:
        """The weather in a city."""
        return await tools.use("weather")

    @made.tool_plain(requires_approval=careful)
    async def publish(text: str) -> str:
        """Publish a forecast."""
        return await tools.use("publish")

    return made


@worker.handler("forecast")
async def forecast(ctx: Context) -> str:
    careful = bool(ctx.payload.get("careful"))
    async with AsyncOpenAI(base_url=f"{tools.server()}/v1", api_key="none") as client:
        with running(ctx):
            result = await agent(client, careful=careful).run("How is the weather in Oslo?")
    await tools.end()
    return result.output


work = functools.partial(tools.work, worker)
