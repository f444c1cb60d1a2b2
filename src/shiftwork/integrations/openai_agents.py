"""Agents of the OpenAI Agents SDK whose model calls and tool calls are steps of a task.

In a handler, call `await run(ctx, agent, input)` instead of `Runner.run`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from agents import (
    Agent,
    AgentOutputSchemaBase,
    FunctionTool,
    Handoff,
    Model,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    RunConfig,
    RunContextWrapper,
    RunErrorHandlers,
    RunHooks,
    Runner,
    RunResult,
    Tool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    TResponseInputItem,
)
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from agents.tool_context import ToolContext
from openai.types.responses.response_prompt_param import ResponsePromptParam
from pydantic import TypeAdapter

from shiftwork.integrations import agent_run
from shiftwork.model.times import Duration
from shiftwork.providers import prices
from shiftwork.worker.context import Context

__all__ = ["run"]

C = TypeVar("C")
_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
_STRUCTURED = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)


async def run(
    ctx: Context,
    agent: Agent[C],
    input: str | list[TResponseInputItem],
    *,
    context: C | None = None,
    max_turns: int | None = 10,
    hooks: RunHooks[C] | None = None,
    run_config: RunConfig | None = None,
    error_handlers: RunErrorHandlers[C] | None = None,
    approval_timeout_sec: Duration | None = None,
) -> RunResult:
    """Run an agent as `Runner.run` does; a later attempt repeats no model call and no tool call.

        Each call is a step, and its usage is booked with it. A tool call that needs approval becomes a question to a
        person;
    the slot is released until they answer. There is no `session`: pass earlier turns in `input`, since a session stored
    elsewhere would contain the turns of a failed attempt.
    """
    config = run_config or RunConfig()
    model = _DurableModel(config.model) if isinstance(config.model, Model) else config.model
    config = dataclasses.replace(config, model=model, model_provider=_DurableProvider(config.model_provider))
    durable = _Durable().agent(agent)

    async def go(given: Any) -> RunResult:
        return await Runner.run(
            durable,
            given,
            context=context,
            max_turns=max_turns,
            hooks=hooks,
            run_config=config,
            error_handlers=error_handlers,
        )

    with agent_run.running(ctx):
        result = await go(input)
        while result.interruptions:
            state = result.to_state()
            for item in result.interruptions:
                tool, call_id = item.name or "a tool", item.call_id or ""
                decided = await agent_run.ask_approval(ctx, tool, item.arguments or "", call_id, approval_timeout_sec)
                if decided.approved:
                    state.approve(item)
                else:
                    state.reject(item, rejection_message=decided.note or None)
            result = await go(state)
        return result


class _Durable:
    """Copies agents, including those they hand off to, so that their model and tool calls are steps."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def agent(self, agent: Agent[C]) -> Agent[C]:
        if (known := self._made.get(id(agent))) is not None:
            return known[1]
        made = agent.clone(tools=[_durable_tool(tool) for tool in agent.tools])
        self._made[id(agent)] = agent, made  # before its handoffs, which may lead back to it
        if isinstance(agent.model, Model):
            made.model = _DurableModel(agent.model)
        made.handoffs = [self._handoff(each) for each in agent.handoffs]
        _wrap_mcp_tools(made)
        return made

    def _handoff(self, handoff: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(handoff, Agent):
            return self.agent(handoff)
        invoke: Callable[[RunContextWrapper[Any], str], Awaitable[Any]] = handoff.on_invoke_handoff

        async def on_invoke_handoff(context: RunContextWrapper[Any], arguments: str) -> Any:
            target = await invoke(context, arguments)
            return self.agent(target) if isinstance(target, Agent) else target

        return dataclasses.replace(handoff, on_invoke_handoff=on_invoke_handoff)


def _wrap_mcp_tools(agent: Agent[Any]) -> None:
    listed = agent.get_mcp_tools

    async def get_mcp_tools(run_context: RunContextWrapper[Any]) -> list[Tool]:
        return [_durable_tool(tool) for tool in await listed(run_context)]

    agent.__dict__["get_mcp_tools"] = get_mcp_tools


def _durable_tool(tool: Tool) -> Tool:
    """Copy the tool so that its calls are steps. Tools that OpenAI runs are part of the model's answer."""
    if not isinstance(tool, FunctionTool):
        return tool
    made = copy.copy(tool)
    invoke = made.on_invoke_tool

    async def on_invoke_tool(context: ToolContext[Any], arguments: str) -> Any:
        if (ctx := agent_run.current()) is None:
            return await invoke(context, arguments)

        async def call() -> Any:
            return _storable(await invoke(context, arguments))

        return await agent_run.call(ctx, f"tool {tool.name} {context.tool_call_id}", call)

    made.on_invoke_tool = on_invoke_tool
    return made


def _storable(output: Any) -> Any:
    """Convert a tool's output to JSON, or to the text that the model would get."""
    if isinstance(output, _STRUCTURED):
        return output.model_dump(mode="json", exclude_none=True)
    if isinstance(output, dict):
        return {str(key): _storable(value) for key, value in output.items()}
    if isinstance(output, list | tuple):
        return [_storable(value) for value in output]
    return output if output is None or isinstance(output, str | bool | int | float) else str(output)


class _DurableProvider(ModelProvider):
    def __init__(self, inner: ModelProvider) -> None:
        self._inner = inner

    def get_model(self, model_name: str | None) -> Model:
        return _DurableModel(self._inner.get_model(model_name))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _DurableModel(Model):
    """A model whose answers are steps, identified by their order."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner
        named = getattr(inner, "model", None)
        self._name = named if isinstance(named, str) else None

    async def close(self) -> None:
        await self._inner.close()

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._inner.get_retry_advice(request)

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: ResponsePromptParam | None,
    ) -> ModelResponse:
        async def ask() -> ModelResponse:
            response = await self._inner.get_response(
                system_instructions,
                input,
                model_settings,
                tools,
                output_schema,
                handoffs,
                tracing,
                previous_response_id=previous_response_id,
                conversation_id=conversation_id,
                prompt=prompt,
            )
            self._book(response)
            return response

        async def stored() -> Any:
            return _RESPONSE.dump_python(await ask(), mode="json")

        ctx = agent_run.current()
        if ctx is None:
            return await ask()  # inside a tool: part of its step
        return _RESPONSE.validate_python(await agent_run.call(ctx, f"model {self._name or ''}".strip(), stored))

    def _book(self, response: ModelResponse) -> None:
        if (ctx := agent_run.task()) is not None:
            used = response.usage
            cached = used.input_tokens_details.cached_tokens or 0
            cost = prices.cost_usd(self._name, used.input_tokens, used.output_tokens, cached=cached)
            ctx.spent(cost, used.input_tokens, used.output_tokens, self._name)

    def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: ResponsePromptParam | None,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Stream without a step: `run` never streams; only an agent inside a tool may."""
        return self._inner.stream_response(
            system_instructions,
            input,
            model_settings,
            tools,
            output_schema,
            handoffs,
            tracing,
            previous_response_id=previous_response_id,
            conversation_id=conversation_id,
            prompt=prompt,
        )
