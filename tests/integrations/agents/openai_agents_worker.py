"""A forecaster made with the OpenAI Agents SDK."""

import functools

from agents import Agent, OpenAIResponsesModel, RunConfig, function_tool
from openai import AsyncOpenAI

from shiftwork.integrations.openai_agents import run
from shiftwork.worker import Context, Worker
from tests.integrations.agents import tools

worker = Worker("forecaster", concurrency=1)


def agent(client: AsyncOpenAI, *, careful: bool) -> Agent[None]:
    @function_tool
    async def weather(city: str) -> str:
        """The weather in a city."""
        return await tools.use("weather")

    @function_tool(needs_approval=careful)
    async def publish(text: str) -> str:
        """Publish a forecast."""
        return await tools.use("publish")

    return Agent(name="forecaster", model=OpenAIResponsesModel(tools.MODEL, client), tools=[weather, publish])


@worker.handler("forecast")
async def forecast(ctx: Context) -> str:
    careful = bool(ctx.payload.get("careful"))
    config = RunConfig(tracing_disabled=True)
    async with AsyncOpenAI(base_url=f"{tools.server()}/v1", api_key="none") as client:
        result = await run(ctx, agent(client, careful=careful), "How is the weather in Oslo?", run_config=config)
    await tools.end()
    return str(result.final_output)


work = functools.partial(tools.work, worker)
