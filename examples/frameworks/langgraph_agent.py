"""A forecaster made with LangGraph. A person approves what it publishes, and no node that has ended runs again.

    pip install 'shiftwork[langgraph]'
    python langgraph_agent.py sqlite:///forecasts.db

Instead of calling a model, this example follows a script. With `init_chat_model(…)` all else stays the same.
"""

import asyncio
import sys

from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from shiftwork import open_queue
from shiftwork.integrations.langgraph import approve, run
from shiftwork.worker import Context, Fail, Worker

calls: list[str] = []
model = FakeMessagesListChatModel(
    responses=[
        AIMessage("", tool_calls=[ToolCall(name="weather", args={"city": "Oslo"}, id="1")]),
        AIMessage("", tool_calls=[ToolCall(name="publish", args={"text": "Rain in Oslo."}, id="2")]),
        AIMessage("It rains in Oslo."),
    ]
)


async def think(state: MessagesState) -> MessagesState:
    calls.append("model")
    return {"messages": [await model.ainvoke(state["messages"])]}


async def act(state: MessagesState) -> MessagesState:
    """Make the tool call that the model asks for; a person decides about publishing."""
    last = state["messages"][-1]
    assert isinstance(last, AIMessage)
    (call,) = last.tool_calls
    if call["name"] == "publish" and not (decided := approve("publish", call["args"])).approved:
        return {"messages": [ToolMessage(f"refused: {decided.note}", tool_call_id=call["id"])]}
    calls.append(call["name"])
    return {"messages": [ToolMessage("done", tool_call_id=call["id"])]}


def what_next(state: MessagesState) -> str:
    last = state["messages"][-1]
    return "act" if isinstance(last, AIMessage) and last.tool_calls else END


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("act", act)
builder.add_edge(START, "think")
builder.add_conditional_edges("think", what_next, ["act", END])
builder.add_edge("act", "think")
graph = builder.compile()
worker = Worker(concurrency=1)


@worker.handler("forecast")
async def forecast(ctx: Context) -> str:
    state = await run(ctx, graph, {"messages": [("user", f"How is the weather in {ctx.payload['city']}?")]})
    if ctx.task.attempts == 0:
        raise Fail("network", "the connection broke after everything was paid for")
    return str(state["messages"][-1].text)


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
