"""LangGraph graphs whose checkpoints are steps of a task.

In a handler, call `await run(ctx, graph, {"messages": [("user", "...")]})` instead of `graph.ainvoke`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, Self
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, interrupt
from langgraph.typing import ContextT, InputT, OutputT, StateT

from shiftwork.integrations import agent_run
from shiftwork.integrations.agent_run import Decision
from shiftwork.model.times import Duration
from shiftwork.providers import prices
from shiftwork.worker.context import Context

__all__ = ["Decision", "ShiftworkSaver", "approve", "run"]

_APPROVAL = "shiftwork_approval"


async def run(
    ctx: Context,
    graph: Pregel[StateT, ContextT, InputT, OutputT],
    input: InputT | Mapping[str, Any],
    *,
    config: RunnableConfig | None = None,
    context: ContextT | None = None,
    name: str = "graph",
    approval_timeout_sec: Duration | None = None,
) -> Any:
    """Run a compiled graph to its end, as `ainvoke` does; a later attempt continues after the last finished node.

        Checkpoints are steps of the task, under this `name`. Usage of chat models is booked with them. An `interrupt`
        becomes
    a question to a person; the slot is released until they answer.
    """
    saver = await ShiftworkSaver.open(ctx, name)
    durable = graph.copy({"checkpointer": saver})
    own: RunnableConfig = {"configurable": {"thread_id": ctx.id}, "callbacks": [_Usage(ctx)]}
    settings = merge_configs(own, config)
    while True:
        state = await durable.aget_state(settings)
        given: Any = None
        if state.created_at is None:
            given = input
        elif state.interrupts and saver.interrupted:
            given = Command(resume=await _answers(ctx, saver, state.interrupts, approval_timeout_sec))
        output = await durable.ainvoke(given, settings, context=context, durability="sync")
        if not (await durable.aget_state(settings)).next:
            return output


def approve(tool: str, arguments: Any) -> Decision:
    """Inside a node: interrupt the graph until a person has approved or rejected this call."""
    answer = interrupt({_APPROVAL: {"tool": tool, "arguments": arguments}})
    return Decision(bool(answer["approved"]), str(answer.get("note", "")))


async def _answers(
    ctx: Context, saver: ShiftworkSaver, interrupts: Sequence[Interrupt], timeout_sec: Duration | None
) -> dict[str, Any]:
    """The answer to each. Two interrupts of one node have the same id: the position in the log distinguishes them."""
    return {each.id: await _answer(ctx, each.value, f"{each.id} {saver.length}", timeout_sec) for each in interrupts}


async def _answer(ctx: Context, value: Any, name: str, timeout_sec: Duration | None) -> Any:
    """Answer `approve`, the actions of LangChain's human-in-the-loop middleware, or a question in any other form."""
    if isinstance(value, Mapping) and isinstance(call := value.get(_APPROVAL), Mapping):
        decided = await agent_run.ask_approval(ctx, str(call["tool"]), call["arguments"], name, timeout_sec)
        return {"approved": decided.approved, "note": decided.note}
    if isinstance(value, Mapping) and isinstance(actions := value.get("action_requests"), list):
        made = []
        for place, action in enumerate(actions):
            tool, arguments = str(action["name"]), action.get("args", {})
            decided = await agent_run.ask_approval(ctx, tool, arguments, f"{name} {place}", timeout_sec)
            refused = {"type": "reject", "message": decided.note} if decided.note else {"type": "reject"}
            made.append({"type": "approve"} if decided.approved else refused)
        return {"decisions": made}
    schema = value.get("schema") if isinstance(value, Mapping) else None
    question = value.get("question", value) if isinstance(value, Mapping) else value
    return await ctx.ask(
        agent_run.fitting(f"interrupt {name}"),
        str(question),
        schema=schema if isinstance(schema, Mapping) else None,
        timeout_sec=timeout_sec,
    )


class ShiftworkSaver(InMemorySaver):
    """A checkpointer that stores checkpoints and writes in a log of steps, which each attempt reads once."""

    def __init__(self, ctx: Context, name: str = "graph") -> None:
        super().__init__()
        self._log = agent_run.StepLog(ctx, name)
        self.length = 0
        """The number of entries in the log."""
        self.interrupted = False
        """Whether an interrupt came after the last answer."""

    @classmethod
    async def open(cls, ctx: Context, name: str = "graph") -> Self:
        """Return a saver with everything that earlier attempts stored."""
        saver = cls(ctx, name)
        for entry in await saver._log.read():
            saver._apply(saver.serde.loads_typed((entry["type"], base64.b64decode(entry["data"]))))
        return saver

    def _apply(self, record: tuple[Literal["checkpoint", "writes"], *tuple[Any, ...]]) -> None:
        kind, *values = record
        if kind == "checkpoint":
            super().put(*values)
        else:
            super().put_writes(*values)
            channels = [channel for channel, _ in values[1]]
            if "__interrupt__" in channels:
                self.interrupted = True
            elif "__resume__" in channels:
                self.interrupted = False
        self.length += 1

    async def _add(self, kind: Literal["checkpoint", "writes"], *values: Any) -> None:
        encoded, data = self.serde.dumps_typed((kind, *values))
        await self._log.append({"type": encoded, "data": base64.b64encode(data).decode()})
        self._apply((kind, *values))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint with only its changed channels."""
        changed = {name: value for name, value in checkpoint["channel_values"].items() if name in new_versions}
        kept: Checkpoint = {**checkpoint, "channel_values": changed}
        known = get_checkpoint_metadata(config, metadata)
        await self._add("checkpoint", _place(config), kept, known, new_versions)
        place = {name: config["configurable"][name] for name in ("thread_id", "checkpoint_ns")}
        return {"configurable": {**place, "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a node's writes."""
        await self._add("writes", _place(config), list(writes), task_id, task_path)

    def put(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("run the graph with ainvoke or astream: the queue is asynchronous")

    put_writes = put

    async def adelete_thread(self, thread_id: str) -> NoReturn:
        raise NotImplementedError(f"the checkpoints of {thread_id} are steps of the task, and are removed with it")


def _place(config: RunnableConfig) -> RunnableConfig:
    """The part of a config that identifies a checkpoint; the rest is only valid in this process."""
    names = ("thread_id", "checkpoint_ns", "checkpoint_id")
    return {"configurable": {name: config["configurable"][name] for name in names if name in config["configurable"]}}


class _Usage(AsyncCallbackHandler):
    """Records the usage of chat models, which is booked with the next checkpoint."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def on_llm_end(
        self,
        response: LLMResult,
        *,
        run_id: UUID,  # noqa: ARG002  # LangChain names it
        **_: Any,
    ) -> None:
        for generations in response.generations:
            for each in generations:
                if isinstance(each, ChatGeneration) and isinstance(each.message, AIMessage):
                    _book(self._ctx, each.message)


def _book(ctx: Context, message: AIMessage) -> None:
    if (used := message.usage_metadata) is None:
        return
    named = message.response_metadata.get("model_name") or message.response_metadata.get("model")
    model = named if isinstance(named, str) else None
    cached = used.get("input_token_details", {}).get("cache_read", 0)
    cost = prices.cost_usd(model, used["input_tokens"], used["output_tokens"], cached=cached)
    ctx.spent(cost, used["input_tokens"], used["output_tokens"], model)
