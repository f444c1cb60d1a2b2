"""A forecaster made with LangGraph: a chat model, its tools, and back."""

import functools
import json
from typing import Any

import aiohttp
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from shiftwork.integrations.langgraph import approve, run
from shiftwork.worker import Context, Worker
from tests.integrations.agents import tools

worker = Worker("forecaster", concurrency=1)


class ResponsesModel(BaseChatModel):
    """A chat model over the test's server, as `langchain-openai` would be."""

    @property
    def _llm_type(self) -> str:
        return "responses"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002  # LangChain names it
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002  # LangChain names it
        **_: Any,
    ) -> ChatResult:
        done = [{"type": "function_call_output", "output": each.text} for each in messages if each.type == "tool"]
        body = {"model": tools.MODEL, "input": done}
        async with aiohttp.ClientSession() as session, session.post(f"{tools.server()}/v1/responses", json=body) as got:
            answer = await got.json()
        (item,) = answer["output"]
        call: list[ToolCall] = []
        if item["type"] == "function_call":
            call = [ToolCall(name=item["name"], args=json.loads(item["arguments"]), id=item["call_id"])]
        message = AIMessage(
            content="" if call else item["content"][0]["text"],
            tool_calls=call,
            usage_metadata={key: answer["usage"][key] for key in ("input_tokens", "output_tokens", "total_tokens")},
            response_metadata={"model_name": answer["model"]},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


def graph(*, careful: bool) -> CompiledStateGraph[MessagesState]:
    async def think(state: MessagesState) -> MessagesState:
        return {"messages": [await ResponsesModel().ainvoke(state["messages"])]}

    async def act(state: MessagesState) -> MessagesState:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        (call,) = last.tool_calls
        if careful and call["name"] == "publish":
            decided = approve("publish", call["args"])
            if not decided.approved:
                return {"messages": [ToolMessage(decided.note, tool_call_id=call["id"])]}
        return {"messages": [ToolMessage(await tools.use(call["name"]), tool_call_id=call["id"])]}

    def what_next(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "act" if isinstance(last, AIMessage) and last.tool_calls else "__end__"

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("act", act)
    builder.set_entry_point("think")
    builder.add_conditional_edges("think", what_next, ["act", "__end__"])
    builder.add_edge("act", "think")
    return builder.compile()


@worker.handler("forecast")
async def forecast(ctx: Context) -> str:
    made = graph(careful=bool(ctx.payload.get("careful")))
    state = await run(ctx, made, {"messages": [("user", "How is the weather in Oslo?")]})
    await tools.end()
    return str(state["messages"][-1].text)


work = functools.partial(tools.work, worker)
