"""Operations on tasks for producers and readers: submit, read, cancel, change, history."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar, Unpack

from msgspec import Meta

from shiftwork.model import check, gc_pause
from shiftwork.model.errors import (
    CircularDependency,
    DuplicateTask,
    IdempotencyKeyRequired,
    IdInUse,
    InputError,
    InvalidPayload,
    Malformed,
    NotFound,
    Overloaded,
    QueueFull,
    QuotaExceeded,
    ResultTimeout,
    TaskCancelled,
    TaskFailed,
    TooManyRequests,
    UnknownDependency,
    UnknownReference,
    UnknownSetting,
    VersionConflict,
    WrongState,
)
from shiftwork.model.history import Attempt, Event, EventPage, History, Transition
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import (
    Changes,
    DagResult,
    Name,
    NewDag,
    NewTask,
    Page,
    PageSize,
    Result,
    Search,
    Submitted,
    Task,
    TaskFields,
    Text,
)
from shiftwork.model.times import Duration, Time, seconds
from shiftwork.observe.model import Explanation, Status
from shiftwork.operation.declare import Executor, Namespace, Operation, operation, operation_of
from shiftwork.operation.handle import DagHandle, Patience, TaskHandle, in_turns
from shiftwork.operation.parameters import Accepts
from shiftwork.steering.api import Steering

T = TypeVar("T")
SUBMITTING = (NotFound, IdInUse, DuplicateTask, CircularDependency, UnknownDependency, UnknownReference) + (
    InvalidPayload,
    UnknownSetting,
    IdempotencyKeyRequired,
    QueueFull,
    QuotaExceeded,
    TooManyRequests,
)
"""Errors that a submission can raise."""
MAX_SUBMIT_WAIT_SEC = 86_400.0
RETRY_SUBMIT_SEC = 0.5
"""Room in a full queue is not announced: a waiting producer retries this often."""
MAX_EVENT_WAIT_SEC = 25.0
MAX_RESULT_WAIT_SEC = 25.0
FOLLOW_SEC = 20.0

Cursor = Annotated[int, Meta(ge=0)]


class Submissions(Namespace, name="", group="Tasks"):
    """What `submit`, `submit_many` and `submit_dag` send."""

    @operation("POST /api/tasks", "submit", body="task", status=201, errors=SUBMITTING)
    async def submit(self, task: NewTask | list[NewTask]) -> Submitted | list[Submitted]:
        """Submit one task, or a list of them at once, all or nothing."""

    @operation("POST /api/dags", "submit", body="dag", envelope="tasks", status=201, errors=SUBMITTING, group="DAGs")
    async def submit_dag(self, dag: NewDag) -> list[Submitted]:
        """Submit tasks and edges as one DAG, all or nothing. Every answer names the DAG."""


class Results(Namespace, name="", group="Tasks"):
    """What `result` sends, repeatedly if it waits longer than the server does."""

    @operation(
        "GET /api/tasks/{task_id}/result",
        "read",
        errors=(NotFound, TaskFailed, TaskCancelled, ResultTimeout, TooManyRequests),
        long_poll="wait",
        rename={"wait": "wait_sec"},
    )
    async def result(self, task_id: Name, *, wait: Annotated[float, Meta(ge=0, le=MAX_RESULT_WAIT_SEC)] = 0) -> Result:
        """Return the result of a task; with `wait`, wait up to that long for it.

        A failed, a cancelled and an unfinished task each raise their own error. If the task was retried or rerun as a
        new one, the newest counts. In a view: the outcome of the last attempt, even if it failed.
        """

    @operation(
        "GET /api/dags/{dag_id}/result",
        "read",
        errors=(NotFound, ResultTimeout, TooManyRequests),
        long_poll="wait",
        rename={"wait": "wait_sec"},
        group="DAGs",
    )
    async def dag_result(
        self, dag_id: Name, *, wait: Annotated[float, Meta(ge=0, le=MAX_RESULT_WAIT_SEC)] = 0
    ) -> DagResult:
        """Return the outcome of each task of a DAG; with `wait`, wait up to that long for its end.

        A DAG has failed when one of its tasks has and none of the others can run.
        """


class Everyday(Steering, name="", group="Tasks"):
    """The everyday operations of producers and readers."""

    async def submit(
        self,
        task: NewTask | Mapping[str, Any] | None = None,
        *,
        wait_for_room: Duration = 0,
        connection: object | None = None,
        **fields: Unpack[TaskFields],
    ) -> TaskHandle[Any]:
        """Submit one task, given as a `NewTask`, a mapping, or keyword arguments; `await handle.result()` waits for it.

        While the queue is full, retries for `wait_for_room` seconds. With `connection`, the task becomes part of the
        transaction open on it: asyncpg, psycopg 3 or SQLAlchemy for a queue in PostgreSQL, apsw for a queue in SQLite.
        """
        if task is not None and fields:
            raise TypeError("give the task or its fields, not both")
        new = check.read(fields if task is None else task, NewTask, "task")
        return TaskHandle.of(self, await self._when_there_is_room(_SUBMIT, {"task": new}, wait_for_room, connection))

    async def submit_many(
        self,
        tasks: Sequence[NewTask | Mapping[str, Any]],
        *,
        wait_for_room: Duration = 0,
        connection: object | None = None,
    ) -> list[TaskHandle[Any]]:
        """Submit a batch, all or nothing.

        Tasks may depend on each other by their local `key`. While the queue is full, retries for `wait_for_room`
        seconds. With `connection`, the batch joins the transaction open on it.
        """
        if not tasks:
            return []
        with gc_pause.put_off(len(tasks)):
            new = check.read_all(tasks, NewTask, "tasks")
        made: list[Submitted] = await self._when_there_is_room(_SUBMIT, {"task": new}, wait_for_room, connection)
        with gc_pause.put_off(len(made)):
            return [TaskHandle.of(self, each) for each in made]

    async def submit_dag(
        self, dag: NewDag | Mapping[str, Any], *, wait_for_room: Duration = 0, connection: object | None = None
    ) -> DagHandle:
        """Submit tasks and edges as one DAG, all or nothing.

        Returns a list of handles that knows the DAG. While the queue is full, retries for `wait_for_room` seconds. With
        `connection`, the DAG joins the transaction open on it.
        """
        new = check.read(dag, NewDag, "dag")
        made: list[Submitted] = await self._when_there_is_room(_SUBMIT_DAG, {"dag": new}, wait_for_room, connection)
        wait_for = functools.partial(dag_result, self._executor)
        return DagHandle([TaskHandle.of(self, each) for each in made], wait_for)

    def _when_there_is_room(
        self, operation: Operation, values: dict[str, Any], wait: Duration, connection: object | None
    ) -> Awaitable[Any]:
        executor = self._executor if connection is None else self._executor.joining(connection)
        if wait == 0:
            return executor.perform(operation, values)
        return _when_there_is_room(lambda: executor.perform(operation, values), seconds(wait))

    @operation("GET /api/tasks/{task_id}", "read", errors=(NotFound,))
    async def get(self, task_id: Name) -> Task:
        """Return one task with all its fields.

        Over HTTP, the ETag begins with the task's version; send it with If-Match to make a change conditional.
        """

    async def result(self, task: str | TaskHandle[Any], *, wait: Patience = 0) -> Result:
        """Return the result of a task, by its id or handle; with `wait`, wait up to that long for it.

        `wait` is in seconds or a timedelta; None waits as long as it takes. Raises `TaskFailed`, `TaskCancelled`,
        `ResultTimeout` if it has not ended in time, and `NotFound`. If the task was retried or rerun as a new one, the
        newest counts.
        """
        task_id = task.id if isinstance(task, Submitted) else task
        given = _RESULT.parameters.read({"task_id": task_id})
        found: Result = await in_turns(self._executor, _RESULT, given, wait)
        return found

    @operation("POST /api/tasks/{task_id}/cancel", "operate", errors=(NotFound, WrongState, VersionConflict))
    async def cancel(self, task_id: Name, reason: Text = "cancelled", *, version: int | None = None) -> Outcome:
        """Cancel a task that has not ended, and its dependents as their settings say.

        With `version`, only if the task is still at the version that was read.
        """

    @operation("GET /api/tasks/{task_id}/explain", "read", errors=(NotFound,))
    async def explain(self, task_id: Name) -> Explanation:
        """Explain why a task is not running, and what would change that."""

    @operation(
        "GET /api/events",
        "read",
        errors=(NotFound, Overloaded, TooManyRequests, Malformed),
        long_poll="wait",
        rename={"wait": "wait_sec"},
        group="Events",
    )
    async def events(
        self,
        after: Cursor | Literal["now"] = 0,
        *,
        limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000,
        wait: Annotated[float, Meta(ge=0, le=MAX_EVENT_WAIT_SEC)] | timedelta = 0,
        task: Name | Sequence[Name] | None = None,
        dag: Name | Sequence[Name] | None = None,
        type: Name | Sequence[Name] | None = None,
        verb: Name | Sequence[Name] | None = None,
    ) -> EventPage:
        """Return the events after a cursor and the next cursor; with `wait`, wait up to that long for the first one.

        A reader that continues from `next` sees every event once. `after` may be `now`, for what happens from now on.
        Filters select the events of these tasks, DAGs, task types and verbs.

        Over HTTP, `Accept: text/event-stream` streams them: each has its cursor as its id, and
        `Last-Event-ID` resumes. Several values of one filter are alternatives.
        """

    async def follow(
        self,
        after: int = 0,
        *,
        poll_sec: Duration = 0.05,
        task: str | Sequence[str] | None = None,
        dag: str | Sequence[str] | None = None,
        type: str | Sequence[str] | None = None,
        verb: str | Sequence[str] | None = None,
    ) -> AsyncIterator[Event]:
        """Yield events as they come, each once, forever; the filters are those of `events`."""
        while True:
            page = await self.events(after, wait=FOLLOW_SEC, task=task, dag=dag, type=type, verb=verb)
            for event in page.events:
                yield event
            after = page.next
            if not page.events:
                await asyncio.sleep(seconds(poll_sec))  # a server about to stop does not wait

    @operation("GET /api/queue", "read", group="Queue")
    async def status(self, *, fresh: bool = False) -> Status:
        """Return the state of the queue: depth, agents, throughput, waits and recent failures.

        More than 100,000 tasks are counted every 30 s at most, unless `fresh` is set.
        """


_SUBMIT = operation_of(Submissions.submit)
_SUBMIT_DAG = operation_of(Submissions.submit_dag)
_RESULT = operation_of(Results.result)
_DAG_RESULT = operation_of(Results.dag_result)


async def dag_result(executor: Executor, dag_id: str, wait: Patience) -> DagResult:
    """Wait for the result of a DAG for as long as the caller wants."""
    found: DagResult = await in_turns(executor, _DAG_RESULT, _DAG_RESULT.parameters.read({"dag_id": dag_id}), wait)
    return found


async def _when_there_is_room(submit: Callable[[], Awaitable[T]], wait: float) -> T:
    """Submit; while the queue is full, retry until the time is up."""
    if not 0 < wait <= MAX_SUBMIT_WAIT_SEC:
        raise InputError(f"expected 0 to {MAX_SUBMIT_WAIT_SEC:g} seconds, got {wait!r}", where="wait_for_room")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        try:
            return await submit()
        except QueueFull:
            left = deadline - loop.time()
            if left <= 0:
                raise
        await asyncio.sleep(min(left, RETRY_SUBMIT_SEC))


class Tasks(Namespace, name="tasks"):
    """The less common operations on tasks."""

    @operation(
        "PATCH /api/tasks/{task_id}",
        "operate",
        body="changes",
        errors=(NotFound, WrongState, VersionConflict, CircularDependency, UnknownDependency),
    )
    async def update(
        self,
        task_id: Name,
        changes: Annotated[Changes | Mapping[str, Any], Accepts(Changes)],
        *,
        version: int | None = None,
    ) -> Outcome:
        """Change a task that no one holds; with `version`, only if it is still at the version that was read."""

    @operation("POST /api/tasks/{task_id}/rerun", "submit", status=201, errors=(NotFound, WrongState))
    async def rerun(
        self,
        task_id: Name,
        *,
        from_step: Name | None = None,
        payload: Mapping[str, Any] | None = None,
        model: Name | None = None,
        downstream: bool = False,
    ) -> Outcome:
        """Repeat the work of an ended task as a new task with a fresh session.

        `from_step` keeps the finished steps before that one, with the effects, artifacts and answered waits recorded
        by then, and repeats it and what follows. `payload` and `model` replace those of the task. With `downstream`
        everything in its DAG that depends on it is repeated, too; its dependencies keep their results.
        """

    @operation("POST /api/issues/{issue_id}/rerun", "submit", status=201, errors=(NotFound, WrongState))
    async def rerun_issue(self, issue_id: Name, task_id: Name | None = None) -> Outcome:
        """Rerun the newest task of an issue, or the one named."""

    @operation("GET /api/tasks/{task_id}/history", "read", errors=(NotFound,))
    async def history(self, task_id: Name, *, limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000) -> History:
        """Return every change of state with its actor and reason, every event, and every ended attempt.

        In a view: the changes of state, between the states that the document knows.
        """

    async def transitions(self, task_id: str) -> list[Transition]:
        """Return every transition of a task, oldest first."""
        return (await self.history(task_id, limit=1)).transitions

    async def attempts(self, task_id: str) -> list[Attempt]:
        """Return every ended attempt of a task, oldest first."""
        return (await self.history(task_id, limit=1)).attempts

    @operation("GET /api/tags/{tag}", "read")
    async def count_by_tag(self, tag: Name) -> dict[str, int]:
        """Count the tasks with this tag in each state, and those that are done."""

    @operation("GET /api/tasks", "read", errors=(NotFound,))
    async def list(  # a filter each, all optional and by name
        self,
        *,
        status: str | Sequence[str] | None = None,
        type: str | None = None,
        agent: str | None = None,
        issue: str | None = None,
        tag: str | None = None,
        dag: str | None = None,
        parent: Name | None = None,
        since: Time | None = None,
        until: Time | None = None,
        search: Search | None = None,
        reason: str | None = None,
        after: Name | None = None,
        limit: PageSize = 100,
        newest: bool = False,
    ) -> Page:
        """Return tasks in order of creation, a page at a time; with `newest`, newest first.

        `status` takes several states, separated by commas. `search` takes one or more words that each task must have in
        its title, payload, tags or errors; a word of three letters or more also matches beginnings. `reason` is why it
        last failed. `next` is the cursor of the following page.
        """

    @operation("GET /api/counts", "read", envelope="counts", errors=(NotFound,))
    async def count(  # a filter each, all optional and by name
        self,
        *,
        status: str | Sequence[str] | None = None,
        type: str | None = None,
        agent: str | None = None,
        issue: str | None = None,
        tag: str | None = None,
        dag: str | None = None,
        parent: Name | None = None,
        since: Time | None = None,
        until: Time | None = None,
        search: Search | None = None,
        reason: str | None = None,
    ) -> dict[str, int]:
        """Count the tasks in each state; takes the filters of `list`."""


class Batch(Namespace, name="batch", group="Tasks"):
    """Operations on many tasks at once, each with its own outcome."""

    @operation("POST /api/batch/get", "read", envelope="tasks", key="never", batch="task_ids", errors=(NotFound,))
    async def get(self, task_ids: Sequence[Name]) -> list[Task]:
        """Return several tasks in the order requested; those that do not exist are left out."""

    @operation("POST /api/batch/cancel", "operate", envelope="outcomes", batch="task_ids", errors=(NotFound,))
    async def cancel(
        self, task_ids: Sequence[Name], reason: Text = "cancelled", *, version: int | None = None
    ) -> list[Outcome]:
        """Cancel several tasks; each has its own outcome."""
