"""Pydantic AI: agents inside tools, parallel tool calls and runs outside of a task."""

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from shiftwork import Queue
from shiftwork.integrations.pydantic_ai import ShiftworkDurability, running
from shiftwork.testing import run_until_idle
from shiftwork.worker import Context, Fail, Worker


class Scripted:
    """Answers one after the other, and counts."""

    def __init__(self, *answers: list[ToolCallPart | TextPart]) -> None:
        self.answers = list(answers)

    def __call__(self, _: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=self.answers.pop(0))

    def agent(self, name: str) -> Agent[None, str]:
        return Agent(FunctionModel(self), name=name, capabilities=[ShiftworkDurability()])


def failing_after(agent: Agent[None, str]) -> Worker:
    worker = Worker(concurrency=1)

    @worker.handler("t")
    async def handle(ctx: Context) -> Any:
        with running(ctx):
            result = await agent.run("go")
        if ctx.task.attempts == 0:
            raise Fail("network", "the answer did not arrive")
        return result.output

    return worker


async def test_agent_inside_a_tool_is_part_of_its_step(store_url: str) -> None:
    inner = Scripted([TextPart("rain")], [TextPart("sun")])
    helper = inner.agent("helper")
    cities = [ToolCallPart("ask", {"city": "Oslo"}), ToolCallPart("ask", {"city": "Rome"})]
    outer = Scripted(list(cities), [TextPart("rain and sun")])
    lead = outer.agent("lead")
    seen: list[str] = []

    @lead.tool_plain
    async def ask(city: str) -> str:
        seen.append(f"{city}: {(await helper.run(city)).output}")
        return seen[-1]

    async with Queue.open(store_url) as queue:
        task_id = (await queue.submit(type="t", retry={"strategy": "immediate"})).id
        await run_until_idle(failing_after(lead), queue)
        task = await queue.get(task_id)
        steps = {step.name: step for step in await queue.steps.list(task_id)}
    assert task.result is not None
    assert (task.status, task.result.data) == ("completed", "rain and sun")
    assert (inner.answers, outer.answers, seen) == ([], [], ["Oslo: rain", "Rome: sun"])
    assert not [name for name in steps if name.startswith("helper")]
    asked = [step for name, step in steps.items() if "ask" in name]
    assert len(asked) == 2
    assert all(step.tokens_out > 0 for step in asked)  # what the helper used is booked with the call


async def test_agent_outside_of_a_task_is_not_changed() -> None:
    model = Scripted([TextPart("rain")])
    assert (await model.agent("lead").run("go")).output == "rain"
