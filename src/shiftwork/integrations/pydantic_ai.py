"""Pydantic AI agents whose model requests and tool calls are steps of a task.

Give the agent the capability `ShiftworkDurability()`, and run it `with running(ctx):`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

from pydantic import TypeAdapter
from pydantic_ai import RunContext
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelCompactMessagesId,
    ModelRequestId,
    RoleBasedOperationConfig,
    conversation_id_from_run_id,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied

from shiftwork.integrations import agent_run
from shiftwork.integrations.agent_run import running
from shiftwork.model.times import Duration
from shiftwork.worker.context import Context

__all__ = ["ShiftworkDurability", "running"]

_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)


class ShiftworkDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable inside `running(ctx)`; outside, it has no effect.

        Each model request and tool call is a step: a later attempt gets its result instead of repeating it. Usage is
        booked
    with the step. A tool that needs approval becomes a question to a person. Tools of one response run one after
    another, since steps are identified by their order.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Shiftwork",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=JSON_CODEC,
        sequential_tools_in_durable_context=True,
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        approval_timeout_sec: Duration | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._approval_timeout_sec = approval_timeout_sec

    @property
    def in_durable_context(self) -> bool:
        return agent_run.task() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[None]:
        config = RoleBasedOperationConfig[None](model=None, event=None, capability=None, tool=None)
        return _Steps(agent_name=self.name, default_model_id=self.default_model_id, config=config)

    def get_default_run_id(self) -> str | None:
        ctx = agent_run.current()
        return None if ctx is None else f"{ctx.id}:{self.name}:{agent_run.number(ctx, self.name)}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return None if agent_run.current() is None else conversation_id_from_run_id(run_id)

    async def get_run_start_time(self, run_id: str) -> datetime | None:  # noqa: ARG002  # steps are identified by order
        """Store the start as a step, so that the timeout of a run counts from its first attempt."""
        ctx = agent_run.current()
        if ctx is None:
            return None

        async def now() -> float:
            return datetime.now(UTC).timestamp()

        return datetime.fromtimestamp(await agent_run.call(ctx, f"{self.name}__run_start_time", now), UTC)

    async def handle_deferred_tool_calls(
        self,
        ctx: RunContext[AgentDepsT],  # noqa: ARG002  # Pydantic AI's own
        *,
        requests: DeferredToolRequests,
    ) -> DeferredToolResults | None:
        """Ask a person about each call that needs approval; leave calls that run elsewhere to other capabilities."""
        task = agent_run.current()
        if task is None or not requests.approvals:
            return None
        results = DeferredToolResults()
        for part in requests.approvals:
            shown = part.args_as_dict()
            decided = await agent_run.ask_approval(
                task, part.tool_name, shown, part.tool_call_id, self._approval_timeout_sec
            )
            denied = ToolDenied(decided.note) if decided.note else ToolDenied()
            results.approvals[part.tool_call_id] = ToolApproved() if decided.approved else denied
        return results


class _Steps(JournalCallableOperationBackend[None]):
    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],  # noqa: ARG002  # a step is identified by its name and order
        config: None,  # noqa: ARG002  # there is nothing to configure
    ) -> object:
        async def booked() -> object:
            payload = await body()
            task = agent_run.task()
            if task is not None and isinstance(operation_id, ModelRequestId | ModelCompactMessagesId):
                _book(task, _RESPONSE.validate_python(payload))
            return payload

        ctx = agent_run.current()
        return await (booked() if ctx is None else agent_run.call(ctx, name, booked))


def _book(ctx: Context, response: ModelResponse) -> None:
    used = response.usage
    ctx.spent(_cost(response), used.input_tokens, used.output_tokens, response.model_name)


def _cost(response: ModelResponse) -> float:
    """The cost by Pydantic AI's prices; 0 for a model without one."""
    try:
        return float(response.cost().total_price)
    except (AssertionError, LookupError, ValueError):
        return 0.0
