"""Messages between agent and queue under a claim: results, failures, heartbeats, instructions.

Each has one form from the handler to the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shiftwork.model.outcome import Token
from shiftwork.model.task import Fields, Name, NewVerdict, Text, Usage

MessageKind = Literal["tool_call", "text", "error"]
UsageReport = Annotated[Usage | None, Meta(description="Usage since the last report.")]

MAX_INSTRUCTION = 10_000
"""The longest instruction, in characters."""

MAX_INSTRUCTIONS = 1_000
"""The most instructions of one task."""

MAX_AT_ONCE = 20
"""The most instructions of one task in the answer to a heartbeat; more follow once these are acknowledged."""


class TaskResult(Fields, kw_only=False):
    """The result of a successful attempt. It is only checked when it is submitted."""

    data: Annotated[Any, Meta(description="The result as JSON.")] = None
    text: Annotated[str | None, Meta(description="The result as text.")] = None
    artifacts: Annotated[Sequence[Name], Meta(description="Ids or addresses of what was made.")] = ()
    decision_report: Annotated[
        dict[str, Any] | None, Meta(description="What was decided and why, if the task requires it.")
    ] = None
    usage: UsageReport = None
    verdict: Annotated[
        NewVerdict | None, Meta(description="Whether the output passed its tests, if the task asks for `test-pass`.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """These fields by name, without those that a subclass adds."""
        return {name: getattr(self, name) for name in TaskResult.__struct_fields__}


class Completion(TaskResult, kw_only=True):
    """A result under the token of its claim, for `batch.complete`."""

    token: str | Token


class CompletionItem(TaskResult, kw_only=True):
    """The same in a request, where a token is text."""

    token: Name


class TaskFailure(Fields, kw_only=False):
    """How an attempt failed. With `retry=False` the task is settled at once.

    A rate limit holds back all agents that share the provider, account and model named; if none is named, those that
    the agent registered with; otherwise all work of the type.
    """

    reason: Name | None = None
    error: Text | None = None
    usage: UsageReport = None
    data: Annotated[Any, Meta(description="A partial result, or facts about the failure.")] = None
    retry: bool = True
    provider: Name | None = None
    account: Name | None = None
    model: Name | None = None

    def fields(self) -> dict[str, Any]:
        """These fields by name, without those that a subclass adds."""
        return {name: getattr(self, name) for name in TaskFailure.__struct_fields__}


class Failure(TaskFailure, kw_only=True):
    """A failed attempt under the token of its claim, for `batch.fail`."""

    token: str | Token


class FailureItem(TaskFailure, kw_only=True):
    """The same in a request, where a token is text."""

    token: Name


class Heartbeat(Fields, kw_only=False):
    """A heartbeat of one claim, with progress and usage since the last one, for `batch.heartbeat`."""

    token: str | Token
    progress: Any = None
    usage: UsageReport = None


class HeartbeatItem(Fields, kw_only=False):
    """The same in a request, where a token is text."""

    token: Name
    progress: Any = None
    usage: UsageReport = None


class Instruction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text for the holder of a task. A task's instructions are numbered from 1 in the order they were sent."""

    seq: int
    text: str
    sent_at: float
    sent_by: str
    status: Literal["waiting", "delivered", "acknowledged", "unread"]
    """`delivered` once it was in an answer to a holder; `unread` if the task ended without an acknowledgement."""
    delivered_at: float | None = None
    fence: int | None = None
    """The fence of the claim that it was last delivered to."""
    acknowledged_at: float | None = None
    """When a holder first acknowledged it. Later attempts get it again, with this time."""


class HeartbeatReply(msgspec.Struct, frozen=True):
    """Whether to continue; `yield` asks the handler to release the task soon, at a good point, because urgent work
    waits.
    """

    task_id: str
    action: Literal["continue", "cancel", "lost", "yield"]
    reason: str | None = None
    slow_down_sec: float | None = None
    """How long to slow down, because an agent hit a rate limit."""
    instructions: list[Instruction] = []
    """Sent to the holder of the task and not yet acknowledged, in order."""
