"""The answer to a claim: tasks and the terms of their claims, or why there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from shiftwork.limits.model import Closed
from shiftwork.model import ids
from shiftwork.model.outcome import Token, parse_token
from shiftwork.model.task import Task

if TYPE_CHECKING:
    from shiftwork.validation.commands import Trial


class Terms(NamedTuple):
    """The deadlines to start and end a claim, and how often it must send a heartbeat."""

    ack_required_by: float | None
    execution_deadline: float | None
    heartbeat_interval_sec: float


class TaskSource(Protocol):
    """Builds a task, on first access, from the rows that its claim has read."""

    def build(self, row: Any, context: Any, /) -> Task: ...


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reference of a task, as its agent sees it."""

    ref: str
    kind: Literal["artifact", "output"]
    id: str
    """The artifact's id, or that of the task whose output it is."""
    size: int | None = None
    """Size in bytes, of an output as JSON; None if it no longer exists, or not yet."""
    media_type: str | None = None
    status: str | None = None
    """The status of the task whose output it is; None if that was purged."""
    inline: bool = False
    """Whether the output is included here; if not, get the result of its task."""
    data: Any = None
    text: str | None = None
    artifacts: list[str] = []
    reason: str | None = None
    """Why the task whose output it is failed or was cancelled, if this one continued without it."""
    error: str | None = None


class AssignmentRecord(msgspec.Struct, frozen=True):
    """A claimed task and the terms of its claim. Send `token` with every write under it."""

    token: str
    assignment_id: str
    task: Task
    ack_required_by: float | None
    execution_deadline: float | None
    heartbeat_interval_sec: float
    model: str | None = None
    inputs: list[Input] = []
    account: str | None = None


class Assignment:
    """A claimed task as its agent sees it. Fields are computed on access: most are never read."""

    __slots__ = ("_body", "_context", "_inputs", "_row", "_task", "_terms", "account", "claim", "model", "type")

    def __init__(
        self,
        claim: Token,
        type: str,
        terms: Terms,
        task: Task | TaskSource,
        row: Any = None,
        context: Any = None,
        body: str | None = None,
        model: str | None = None,
        account: str | None = None,
        inputs: list[Input] | None = None,
    ) -> None:
        self.claim = claim
        """The claim as a parsed token; operations accept it in place of the token's text."""
        self.type = type
        self.model = model
        """The model to use, if the task restricts its models."""
        self.account = account
        """The account to use, if the agent has several."""
        self._inputs = inputs
        self._terms = terms
        self._task = task
        self._row, self._context = row, context
        """The rows that the claim has read, until the task is built from them."""
        self._body = body
        """The stored body of the task as JSON, if this process has read it."""

    @classmethod
    def of_record(cls, record: AssignmentRecord) -> Assignment:
        terms = Terms(record.ack_required_by, record.execution_deadline, record.heartbeat_interval_sec)
        claim = parse_token(record.token)
        known: dict[str, Any] = {"model": record.model, "account": record.account, "inputs": record.inputs}
        return cls(claim, record.task.type, terms, record.task, **known)

    @classmethod
    def of_task(cls, task: Task, inputs: list[Input]) -> Assignment:
        """Of a claimed task, by the terms of its claim."""
        held = task.claim
        terms = Terms(held.ack_required_by, held.execution_deadline, held.heartbeat_interval_sec)
        claim = parse_token(ids.token(task.id, task.fence))
        return cls(claim, task.type, terms, task, model=held.model, account=held.account, inputs=inputs)

    def as_record(self) -> AssignmentRecord:
        return AssignmentRecord(
            self.token, self.token, self.task(), *self._terms, self.model, self.inputs, self.account
        )

    @property
    def inputs(self) -> list[Input]:
        """The content that the spec's references resolve to, and the outputs of tasks it has waited for."""
        return [] if self._inputs is None else self._inputs

    @property
    def id(self) -> str:
        return ids.show_task(self.claim.id)

    @property
    def fence(self) -> int:
        return self.claim.fence

    @property
    def token(self) -> str:
        return self.claim.text

    @property
    def assignment_id(self) -> str:
        return self.token

    @property
    def ack_required_by(self) -> float | None:
        return self._terms.ack_required_by

    @property
    def execution_deadline(self) -> float | None:
        return self._terms.execution_deadline

    @property
    def heartbeat_interval_sec(self) -> float:
        return self._terms.heartbeat_interval_sec

    @property
    def payload(self) -> dict[str, Any]:
        if self._body is None:
            return self.task().payload
        payload: dict[str, Any] = msgspec.json.decode(self._body).get("payload", {})
        return payload

    @property
    def spec(self) -> dict[str, Any] | None:
        return self.task().spec

    @property
    def tests(self) -> Trial | None:
        """The tests that its output must pass before it is submitted, if it has any."""
        if (
            self._body is not None and '"test-pass"' not in self._body
        ):  # most tasks have no tests: do not read their bodies for this
            return None
        from shiftwork.validation.commands import tests_of  # noqa: PLC0415  # few tasks have tests, and a client is light

        return tests_of(self.task().output if self._body is None else msgspec.json.decode(self._body).get("output"))

    @property
    def traceparent(self) -> str | None:
        """The trace the task belongs to."""
        if self._body is None:
            return self.task().traceparent
        if '"traceparent"' not in self._body:  # most have none
            return None
        found: str | None = msgspec.json.decode(self._body).get("traceparent")
        return found

    def task(self) -> Task:
        """Every field as of the claim, with what failed before and what it depended on."""
        return self._task if isinstance(self._task, Task) else self._task.build(self._row, self._context)


def is_simple(assignment: Assignment) -> bool:
    """Whether its task certainly has neither tests nor a trace; most have none."""
    body = assignment._body  # noqa: SLF001  # not part of what a caller sees
    return body is not None and '"test-pass"' not in body and '"traceparent"' not in body


class ClaimResult(msgspec.Struct, frozen=True):
    """The claimed tasks, or why there are none."""

    assignments: list[Assignment]
    closed: tuple[Closed, ...] = ()
    """Closed gates: pauses, open breakers, cooldowns, exhausted limits."""
    no_fit: int = 0
    """Ready tasks that were considered but did not fit this agent now."""
    at_capacity: bool = False
    slow_down_sec: float | None = None
    """How long to slow down, because an agent hit a rate limit."""
