"""Work under a claim: claimed, started, kept alive, submitted or released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

from msgspec import Meta

from shiftwork.engine.assignment import Assignment, ClaimResult
from shiftwork.model.errors import (
    AgentUnavailable,
    AgentUnregistered,
    CircularDependency,
    DuplicateTask,
    FenceRequired,
    FolderUnavailable,
    IdempotencyKeyRequired,
    IdInUse,
    InvalidPayload,
    LeaseLost,
    LockTimeout,
    NotFound,
    NotYourClaim,
    QueueFull,
    QuotaExceeded,
    ReportRequired,
    SpawnLimit,
    TooManyRequests,
    UnknownDependency,
    UnknownReference,
    UnknownSetting,
    WrongState,
)
from shiftwork.model.outcome import Outcome
from shiftwork.model.reports import (
    Completion,
    CompletionItem,
    Failure,
    FailureItem,
    Heartbeat,
    HeartbeatItem,
    HeartbeatReply,
    MessageKind,
)
from shiftwork.model.task import Failures, Name, NewTask, NewVerdict, Submitted, Task, Text, Usage
from shiftwork.model.times import Duration
from shiftwork.operation.declare import Namespace, operation
from shiftwork.operation.parameters import MAX_BATCH, Accepts, ClaimToken

MAX_CLAIM_WAIT_SEC = 25.0
HOLDING = (NotFound, LeaseLost, WrongState, FenceRequired, NotYourClaim)
"""Errors that a write under a claim can raise."""
SUBMITTING = (NotFound, IdInUse, DuplicateTask, CircularDependency, UnknownDependency, UnknownReference) + (
    InvalidPayload,
    UnknownSetting,
    IdempotencyKeyRequired,
    QueueFull,
    QuotaExceeded,
    TooManyRequests,
)

Count = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
Ahead = Annotated[int, Meta(ge=0, le=MAX_BATCH)]
Wait = Annotated[float, Meta(ge=0, le=MAX_CLAIM_WAIT_SEC)] | timedelta
GivenUsage = Annotated[Usage | Mapping[str, Any], Accepts(Usage)] | None
GivenVerdict = Annotated[NewVerdict | Mapping[str, Any], Accepts(NewVerdict)] | None
LongText = Annotated[str | None, Accepts(Any, over_http=str | None)]
"""Text without a length limit of its own: the whole result has one."""


class WorkerVerbs(Namespace, name="", group="Working"):
    """The everyday operations of workers."""

    async def claim(
        self,
        agent_id: str,
        count: int = 1,
        *,
        wait: Duration = 0,
        runtime_id: str | None = None,
        start: bool = False,
        types: Sequence[str] | None = None,
        capabilities: Sequence[str] = (),
        models: Sequence[str] = (),
        fifo: bool = False,
    ) -> list[Assignment]:
        """Claim up to `count` tasks, best first; with `wait`, for up to 25 seconds until there is one."""
        result = await Claims(self._executor).request(
            agent_id,
            count,
            wait=wait,
            runtime_id=runtime_id,
            start=start,
            types=types,
            capabilities=capabilities,
            models=models,
            fifo=fifo,
        )
        return result.assignments

    @operation("POST /api/tasks/{task_id}/start", "work", key="never", errors=HOLDING)
    async def start(self, token: ClaimToken) -> Outcome:
        """Acknowledge a claim: the work begins."""

    @operation("POST /api/tasks/{task_id}/heartbeat", "work", key="with_usage", errors=HOLDING)
    async def heartbeat(self, token: ClaimToken, progress: Any = None, usage: GivenUsage = None) -> HeartbeatReply:
        """Extend the lease of one task; answers continue, cancel, lost or yield."""

    @operation(
        "POST /api/tasks/{task_id}/complete",
        "work",
        key="with_usage",
        errors=(*HOLDING, ReportRequired, UnknownReference),
    )
    async def complete(
        self,
        token: ClaimToken,
        data: Any = None,
        *,
        text: LongText = None,
        artifacts: Sequence[Name] = (),
        decision_report: Mapping[str, Any] | None = None,
        usage: GivenUsage = None,
        verdict: GivenVerdict = None,
    ) -> Outcome:
        """Submit a result. It is accepted once, however often it is sent.

        In a view, the body is the document's own record of a result; one that reports a failure ends the attempt as
        failed.
        """

    @operation("POST /api/tasks/{task_id}/fail", "work", key="with_usage", errors=HOLDING)
    async def fail(
        self,
        token: ClaimToken,
        reason: Name | None = None,
        error: Text | None = None,
        *,
        usage: GivenUsage = None,
        data: Any = None,
        retry: bool = True,
        provider: Name | None = None,
        account: Name | None = None,
        model: Name | None = None,
    ) -> Outcome:
        """Report a failed attempt; returns the task's new status. With `retry=False` it is settled at once.

        A rate limit holds back work that shares the provider, account and model named; if none is named, those that the
        agent registered with; otherwise all work of the type.
        """

    @operation("POST /api/tasks/{task_id}/release", "work", errors=HOLDING)
    async def release(self, token: ClaimToken, reason: Text | None = None) -> Outcome:
        """Return a task to the queue without cost."""


class Spawning(Namespace, name="", group="Working"):
    """What `spawn` sends."""

    @operation(
        "POST /api/tasks/{task_id}/spawn",
        "work",
        envelope="tasks",
        status=201,
        errors=(*HOLDING, *SUBMITTING, SpawnLimit),
    )
    async def spawn(
        self,
        token: ClaimToken,
        tasks: Sequence[Annotated[NewTask | Mapping[str, Any], Accepts(NewTask)]],
        *,
        wait: bool = False,
        failures: Failures = "wait",
        name: Name | None = None,
    ) -> list[Submitted]:
        """Add subtasks to the task's own DAG. With `wait` its slot is released until they are done.

        They are done when they are completed; with `failures` set to `return`, once they have ended, whatever the
        outcome. The task's `failed_dependencies` then say which ended without success, and why.

        With a `name` this happens once in the life of the task, like a step: called again, also by a later attempt, it
        spawns nothing and answers with the same subtasks; if they are all done, `wait` releases nothing.
        """


class Claims(Namespace, name="claims", group="Working"):
    """Less common operations on claims."""

    @operation(
        "POST /api/tasks/claim",
        "work",
        errors=(AgentUnregistered, AgentUnavailable, LockTimeout, FolderUnavailable, TooManyRequests),
        long_poll="wait",
        rename={"wait": "wait_sec"},
    )
    async def request(
        self,
        agent_id: Name | None = None,
        count: Count = 1,
        *,
        wait: Wait = 0,
        runtime_id: Name | None = None,
        start: bool = False,
        types: Sequence[Name] | None = None,
        capabilities: Sequence[Name] = (),
        models: Sequence[Name] = (),
        fifo: bool = False,
        ahead: Ahead = 0,
    ) -> ClaimResult:
        """Claim the best work for an agent, waiting up to 25 seconds; without work, say why there is none.

        Returns as soon as there is work; for an agent without a free slot, within `poll_interval_sec` of getting one.
        Without `types`, any type that the agent can do. With `fifo`, the oldest task first, whatever its priority. With
        `ahead`, the agent may hold that many tasks more than its `max_concurrent_tasks`: for a worker with short tasks,
        which start within moments. Without `agent_id`, each task is claimed for the agent that it targets: for runtimes
        that host several.
        """

    async def for_runtime(
        self,
        runtime_id: str,
        count: int = 1,
        *,
        wait: Duration = 0,
        start: bool = False,
        types: Sequence[str] | None = None,
        capabilities: Sequence[str] = (),
        models: Sequence[str] = (),
        fifo: bool = False,
    ) -> ClaimResult:
        """Claim for a runtime that hosts many agents: each task is claimed for the agent it targets.

        Agents come in the order of their best tasks; untargeted work is claimed as the runtime itself.
        """
        return await self.request(
            None,
            count,
            wait=wait,
            runtime_id=runtime_id,
            start=start,
            types=types,
            capabilities=capabilities,
            models=models,
            fifo=fifo,
        )

    @operation("GET /api/claims", "work", envelope="tasks", rename={"claimed_by": "who", "request_id": "request"})
    async def made_by_request(self, claimed_by: Text, request_id: Text) -> list[Task]:
        """Return what an agent or a runtime still holds under the claim it sent with the Idempotency-Key `request`."""

    @operation("GET /api/tasks/{task_id}/claim", "work", envelope="token", errors=HOLDING)
    async def current_token(
        self, task_id: Name, *, agent_id: Name | None = None, runtime_id: Name | None = None
    ) -> str:
        """Return the token of a task's current or last claim, for a holder that has lost it."""

    @operation("POST /api/tasks/{task_id}/progress", "work", key="never", rename={"value": "progress"}, errors=HOLDING)
    async def progress(self, token: ClaimToken, value: Any = None) -> Outcome:
        """Report progress; also counts as a heartbeat."""

    @operation("POST /api/tasks/{task_id}/messages", "work", errors=HOLDING)
    async def message(
        self,
        token: ClaimToken,
        kind: MessageKind,
        text: Text = "",
        data: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Record what the agent is doing: a tool call, text, or an error."""

    @operation("POST /api/tasks/{task_id}/session", "work", key="never", errors=HOLDING)
    async def pin_session(
        self, token: ClaimToken, session_id: Name | None = None, work_dir: Text | None = None
    ) -> Outcome:
        """Pin the agent's session to the task, so that a retry can resume it."""

    @operation("POST /api/tasks/{task_id}/verdict", "work", key="never", errors=HOLDING)
    async def verdict(
        self,
        token: ClaimToken,
        *,
        passed: bool,
        evidence: Mapping[str, Any] | None = None,
        note: Text | None = None,
    ) -> Outcome:
        """Give the verdict on an output that was submitted without one."""


class ClaimBatch(Namespace, name="batch", group="Working"):
    """Writes under many claims in one transaction; each has its own outcome."""

    @operation(
        "POST /api/batch/start", "work", key="never", envelope="outcomes", batch="tokens", errors=(FenceRequired,)
    )
    async def start(self, tokens: Sequence[ClaimToken]) -> list[Outcome]:
        """Acknowledge several claims; each has its own outcome."""

    @operation(
        "POST /api/batch/heartbeat",
        "work",
        key="with_usage",
        envelope="heartbeats",
        batch="heartbeats",
        errors=(FenceRequired,),
    )
    async def heartbeat(
        self,
        heartbeats: Sequence[Annotated[Heartbeat | Mapping[str, Any], Accepts(Any, over_http=HeartbeatItem)]],
    ) -> list[HeartbeatReply]:
        """Extend the leases of several tasks."""

    @operation(
        "POST /api/batch/complete",
        "work",
        key="with_usage",
        envelope="outcomes",
        batch="completions",
        rename={"completions": "reports"},
        errors=(FenceRequired,),
    )
    async def complete(
        self,
        completions: Sequence[Annotated[Completion | Mapping[str, Any], Accepts(Any, over_http=CompletionItem)]],
    ) -> list[Outcome]:
        """Submit several results; each has its own outcome."""

    @operation(
        "POST /api/batch/fail",
        "work",
        key="with_usage",
        envelope="outcomes",
        batch="failures",
        rename={"failures": "problems"},
        errors=(FenceRequired,),
    )
    async def fail(
        self, failures: Sequence[Annotated[Failure | Mapping[str, Any], Accepts(Any, over_http=FailureItem)]]
    ) -> list[Outcome]:
        """Report several failed attempts; each has its own outcome."""

    @operation("POST /api/batch/release", "work", envelope="outcomes", batch="tokens", errors=(FenceRequired,))
    async def release(self, tokens: Sequence[ClaimToken], reason: Text | None = None) -> list[Outcome]:
        """Release several tasks; each has its own outcome."""
