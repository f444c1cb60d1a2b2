"""The handler's context: its task, and what it can call while it runs."""

from __future__ import annotations

import functools
import hashlib
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, overload

from shiftwork.engine.assignment import Assignment
from shiftwork.model import check
from shiftwork.model.errors import InputError, OperationTimeout, StoreError, TaskCancelled, TaskFailed
from shiftwork.model.reports import Instruction, MessageKind, TaskResult
from shiftwork.model.states import FINAL, SETTLED, State
from shiftwork.model.task import FailedDependency, Failures, NewTask, Task, Usage, Wait
from shiftwork.model.times import Duration, Time
from shiftwork.operation.handle import TaskHandle
from shiftwork.operation.interface import AnyQueue
from shiftwork.task_logs.model import MAX_LINE, LogLevel, NewLogLine
from shiftwork.task_types.typed_task import OneInput
from shiftwork.worker import map_subtasks, usage_scope
from shiftwork.worker.content import Content
from shiftwork.worker.durable import Durable, persist
from shiftwork.worker.error_text import clean
from shiftwork.worker.inbox import Inbox
from shiftwork.worker.log_sender import LogSender
from shiftwork.worker.task_tests import run_tests

log = logging.getLogger("shiftwork.worker")
task_log = logging.getLogger("shiftwork.task")
MAX_SPAWN_NAME_LENGTH = 200
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
MAX_NAMED = 10
"""Failed subtasks that an error names."""
PAGE = 500
X = TypeVar("X")
R = TypeVar("R")


class Fail(Exception):
    """Raised by a handler to fail its attempt with a reason of its choice."""

    def __init__(self, reason: str, error: str = "", *, retry: bool = True, data: Any = None) -> None:
        super().__init__(error or reason)
        self.reason = reason
        self.error = error or reason
        self.retry = retry
        self.data = data
        """A partial result, or facts about the failure such as the status and headers of a response."""


class Done(TaskResult, kw_only=True):
    """Returned by a handler to submit more than data."""

    verdict: Any = None
    """The verdict of tests that the handler ran itself: `{"passed": ..., "evidence": ..., "note": ...}`."""
    once_accepted: Callable[[], None] | None = None
    """Called when the queue has accepted the result, unless this process ended before."""


class WaitExpired(Fail):
    """A signal or an answer did not arrive in time. If not caught, it fails the task: a retry would not help."""

    def __init__(self, wait: Wait) -> None:
        super().__init__("wait_expired", f"{wait.name!r} expired without an answer", retry=False)
        self.wait = wait


class SubtasksFailed(Fail):
    """Subtasks of a map failed or were cancelled. If not caught, it fails the task: a retry would not help."""

    def __init__(self, failed: Mapping[int, TaskFailed | TaskCancelled], total: int) -> None:
        named = "; ".join(f"input {place}: {error.what}" for place, error in list(failed.items())[:MAX_NAMED])
        more = f"; and {len(failed) - MAX_NAMED} more" if len(failed) > MAX_NAMED else ""
        super().__init__("subtasks_failed", f"{len(failed)} of {total} subtasks failed: {named}{more}", retry=False)
        self.failed = dict(failed)
        """The error of each subtask that failed or was cancelled, by the index of its input."""


class Release(Exception):
    """Raised by a handler to return its task to the queue without cost."""


class Suspended(BaseException):
    """Ends a handler whose task waits. Not an `Exception`: a handler's `except` must not stop it."""


class Subtask(NamedTuple):
    """A subtask that this task has spawned, with its outcome."""

    id: str
    type: str
    status: str
    data: Any
    error: str | None
    text: str | None = None
    """Its result as text: the whole output of a command, unless that prints an object."""
    reason: str | None = None
    """Why it failed or was cancelled."""

    @property
    def completed(self) -> bool:
        return self.status == State.COMPLETED

    @property
    def output(self) -> Any:
        """Its result: the data, or the text if there is no data."""
        return self.text if self.data is None else self.data


class Context(Durable, Content):
    """One attempt at one task. The runner sends the heartbeats."""

    def __init__(
        self,
        queue: AnyQueue,
        assignment: Assignment,
        slow_for: Callable[[], float],
        opened: Mapping[Any, Any] = MappingProxyType({}),
        log_sender: LogSender | None = None,
    ) -> None:
        self._queue, self._assignment = queue, assignment
        self._slow_for = slow_for
        self.opened = opened
        """The resources opened by the worker's lifespans; `Lifespan.of` reads them."""
        self._log_sender = log_sender

    # Most handlers never use these, so they are created on first access.
    _task: Task | None = None
    _cancelled = False
    _should_yield = False
    _work_dir: str | None = None
    _inbox: Inbox | None = None
    cost_usd = 0.0
    """The cost of this attempt so far, as reported by `spent`."""
    spent_so_far = usage_scope.NOTHING
    """The same with tokens and model, booked or not."""
    session_id: str | None = None
    """The session that this attempt has pinned."""

    @functools.cached_property
    def _waited(self) -> dict[str, int]:
        return defaultdict(int)

    @property
    def id(self) -> str:
        return self._assignment.id

    @property
    def type(self) -> str:
        return self._assignment.type

    @property
    def token(self) -> str:
        """The claim's token: pass it to systems that must distinguish this attempt from older ones."""
        return self._assignment.token

    @property
    def model(self) -> str | None:
        """The model to use, if the task restricts its models: never one in cooldown."""
        return self._assignment.model

    @property
    def account(self) -> str | None:
        """The account to use, if the worker was declared with several."""
        return self._assignment.account

    @property
    def payload(self) -> dict[str, Any]:
        return self._assignment.payload

    @property
    def task(self) -> Task:
        """The whole task as of the claim."""
        if self._task is None:
            self._task = self._assignment.task()
        return self._task

    @property
    def cancelled(self) -> bool:
        """True once the result is no longer wanted. An async handler is interrupted; a plain one must check this."""
        return self._cancelled

    def cancel(self) -> None:
        """Called by the runner to stop a plain function."""
        self._cancelled = True

    @property
    def should_yield(self) -> bool:
        """True once an urgent task needs this one's slot. Raise `Release` at a good point: steps are kept.

        An async handler that continues is interrupted after the worker's `cancel_grace_sec`; a plain one must check
        this.
        """
        return self._should_yield

    @property
    def slow_down_sec(self) -> float:
        """How many seconds to slow down because an agent hit a rate limit; 0 otherwise.

        A handler that calls the same provider may wait this long before it continues: its lease stays valid.
        """
        return self._slow_for()

    def inbox(self) -> Inbox:
        """Instructions of people and programs to this task: `async for instruction in ctx.inbox()`, or `await
        inbox.take()`.

        It begins with everything sent so far, also to earlier attempts, and continues with what heartbeats bring.
        """
        if self._inbox is None:
            self._inbox = Inbox(self._queue, self.token)
        return self._inbox

    def receive(self, instructions: Iterable[Instruction]) -> None:
        """Called by the runner with a heartbeat's instructions. If the handler never asks, they stay unread in the
        queue.
        """
        if self._inbox is not None:
            self._inbox.receive(instructions)

    def ask_to_yield(self) -> None:
        """Called by the runner when the queue asks this task to yield."""
        self._should_yield = True

    async def read(self) -> Task:
        """The whole task as it is now, with its history."""
        return await self._queue.get(self.id)

    async def progress(self, value: Any) -> None:
        """Report progress. While the store is unreachable, the report is dropped, and the work continues."""
        try:
            await self._queue.claims.progress(self.token, value)
        except (StoreError, OperationTimeout) as error:
            log.info("could not report the progress of %s: %s", self.id, error)

    async def message(self, text: str, *, kind: MessageKind = "text", data: Mapping[str, Any] | None = None) -> None:
        """Report activity: kind is text, tool_call or error. Like progress, it is dropped while the store is
        unreachable.
        """
        try:
            await self._queue.claims.message(self.token, kind, text, data)
        except (StoreError, OperationTimeout) as error:
            log.info("could not report a message of %s: %s", self.id, error)

    def log(self, text: object, level: LogLevel = "info") -> None:
        """Add a line to the task's log, for `shiftwork logs` and the dashboard; also logged as `shiftwork.task`.

        Lines are sent together, about once a second and before the result. They are dropped while the store is
        unreachable, and once the task is cancelled. A log holds a million characters.
        """
        if level not in _LEVELS:
            raise InputError(f"there is no level {level!r}", where="level", hint=f"One of {', '.join(_LEVELS)}.")
        line = NewLogLine(clean(text, MAX_LINE), level, self._queue.now())
        task_log.log(_LEVELS[level], "%s (%s): %s", self.id, self.type, line.text)
        if self._log_sender is not None:
            self._log_sender.add(self.token, line)

    async def pin_session(self, session_id: str | None = None, work_dir: str | None = None) -> None:
        """Pin the agent's session to the task, so that a retry can resume it."""
        await self._queue.claims.pin_session(self.token, session_id, work_dir)
        self._work_dir = work_dir or self._work_dir
        self.session_id = session_id or self.session_id

    async def run_tests(self, folder: Path | None = None, mark: str | None = None) -> dict[str, Any] | None:
        """Run the task's tests and return the verdict, for `Done`; None if it has no tests.

        They run in the folder that this or an earlier attempt has pinned, otherwise in the current folder.
        """
        tests = self._assignment.tests
        if tests is None:
            return None
        until = self._assignment.execution_deadline
        limit = None if until is None else until - self._queue.now()
        return await run_tests(tests, folder or Path(self._work_dir or self.task.work_dir or "."), limit, mark)

    async def report_quota(self, headers: Mapping[str, str]) -> None:
        """Report how far the account's windows are used, from the headers of a provider's answer."""
        await self._queue.accounts.report(self.token, headers=dict(headers))

    def spent(
        self,
        cost_usd: float | None = None,
        tokens_in: int = 0,
        tokens_out: int = 0,
        model: str | None = None,
        *,
        tokens_cached: int = 0,
    ) -> None:
        """Record what the work has used; it is booked with the result, or with the failure.

        A missing cost is computed from tokens and model by public prices; `tokens_cached` is the part of
        `tokens_in` that came from a cache. Several models between two bookings are counted as one: call
        `book_usage` in between to keep them apart.
        """
        if cost_usd is not None and not math.isfinite(cost_usd):
            raise InputError(f"{cost_usd!r} is not an amount of money", where="cost_usd")
        used = {"cost_usd": cost_usd, "tokens_in": tokens_in, "tokens_out": tokens_out, "model": model}
        used["tokens_cached"] = tokens_cached
        self._record(check.read(used, Usage, "usage"))
        self.cost_usd += cost_usd or 0.0
        self.spent_so_far = usage_scope.add(self.spent_so_far, check.read(used, Usage, "usage"))

    def usage(self) -> Usage | None:
        """Usage recorded but not yet booked."""
        if self._noted is None:
            return None
        noted = self._noted.used
        return noted if noted.cost_usd or noted.tokens_in or noted.tokens_out else None

    def take_usage(self) -> Usage | None:
        """Take that usage, to book it now."""
        used = self.usage()
        self._usage_total.empty()
        return used

    async def book_usage(self) -> None:
        """Book the recorded usage now; this happens automatically at the end. An attempt over its budget is cancelled.

        Sends the log lines as well.
        """
        if self._log_sender is not None:
            await self._log_sender.send([self.token])
        if used := self.take_usage():
            try:
                answer = await self._queue.heartbeat(self.token, usage=used)
            except (StoreError, OperationTimeout):
                self._record(used)  # it is sent with the next report
                raise
            self.receive(answer.instructions)
            if answer.action == "yield":
                self.ask_to_yield()
            elif answer.action != "continue":
                self.cancel()

    async def spawn(
        self, tasks: Sequence[NewTask | Mapping[str, Any]], *, name: str | None = None
    ) -> list[TaskHandle[Any]]:
        """Add subtasks to this task's DAG and continue; a later run of the handler gets the same ones.

        A spawn is identified by its `name`, or by the types of the tasks; a repeated name is another spawn, numbered in
        the order of the calls, as with steps.
        """
        return await self._spawn(tasks, name)

    async def spawn_and_wait(
        self,
        tasks: Sequence[NewTask | Mapping[str, Any]],
        *,
        name: str | None = None,
        failures: Failures = "wait",
    ) -> list[Subtask]:
        """Add subtasks and free the slot until they are done; the handler is then run again, and gets them here.

        That run spawns nothing: it gets the subtasks of the first run, identified as in `spawn`.

        They are done when they are completed: a subtask that fails for good blocks this task until a person brings it
        to completion. With `failures="return"` they are done once they have ended, and each says how: `status`,
        `reason` and `error`. A returned outcome stays, even if a person retries the subtask later.
        """
        await self.book_usage()
        numbered = self._numbered(name or _spawn_name(tasks))
        made = await persist(lambda: self._queue.spawn(self.token, tasks, wait=True, failures=failures, name=numbered))
        if any(each.status not in (FINAL | SETTLED if failures == "return" else {State.COMPLETED}) for each in made):
            raise Suspended
        failed = [] if all(each.status == State.COMPLETED for each in made) else (await self.read()).failed_dependencies
        return await self._outcomes([each.id for each in made], failed)

    @overload
    async def map(
        self,
        task: str,
        inputs: Iterable[Mapping[str, Any]],
        *,
        limit: int | None = None,
        failures: Literal["raise", "return"] = "raise",
        name: str | None = None,
    ) -> list[Any]: ...

    @overload
    async def map(
        self,
        task: OneInput[X, R],
        inputs: Iterable[X],
        *,
        limit: int | None = None,
        failures: Literal["raise"] = "raise",
        name: str | None = None,
    ) -> list[R]: ...

    @overload
    async def map(
        self,
        task: OneInput[X, R],
        inputs: Iterable[X],
        *,
        limit: int | None = None,
        failures: Literal["return"],
        name: str | None = None,
    ) -> list[R | TaskFailed | TaskCancelled]: ...

    async def map(
        self,
        task: str | OneInput[Any, Any],
        inputs: Iterable[Any],
        *,
        limit: int | None = None,
        failures: Literal["raise", "return"] = "raise",
        name: str | None = None,
    ) -> list[Any]:
        """Run one subtask for each input and return their results, in the order of the inputs.

        `task` is a type, whose payloads are the inputs, or a typed task. The slot is freed until all have ended; the
        handler is then run again, spawns nothing, and gets the results here. At most `limit` of them run at once.

        If one fails for good or is cancelled, `SubtasksFailed` is raised once all have ended and names those that did.
        With `failures="return"` a `TaskFailed` or `TaskCancelled` takes its place.
        """
        check.one_of(failures, ("raise", "return"), "failures")
        known_by = self._numbered(name or f"map {task if isinstance(task, str) else task.type}")
        new = map_subtasks.subtasks(task, inputs, limit, f"{self.task.root_task_id} {known_by}")
        if not new:
            return []
        await self.book_usage()
        made = [id_ for part in map_subtasks.batches(new) for id_ in await self._spawn_part(known_by, part)]
        waited = await persist(lambda: self._queue.waits.request(self.token, tasks=made, failures="return"))
        if waited.status != State.RUNNING:
            raise Suspended
        found = [map_subtasks.result_of(task, each) for each in await self._outcomes(made, waited.failed)]
        failed = {place: each for place, each in enumerate(found) if isinstance(each, map_subtasks.FAILED)}
        if failed and failures == "raise":
            raise SubtasksFailed(failed, len(found))
        return found

    async def _spawn_part(self, name: str, part: map_subtasks.Part) -> list[str]:
        """The ids of one part of a map, spawned now or by an earlier run."""
        known_by = f"{name} from {part.start}" if part.start else name
        made = await persist(lambda: self._queue.spawn(self.token, part.tasks, failures="return", name=known_by))
        if len(made) != len(part.tasks):
            hint = "Compute the inputs in a step, so that every run of the handler maps the same ones."
            was = f"{name!r} mapped {part.start + len(made)} inputs before, not {part.start + len(part.tasks)}"
            raise InputError(was, where="inputs", hint=hint)
        return [each.id for each in made]

    async def _spawn(self, tasks: Sequence[NewTask | Mapping[str, Any]], name: str | None) -> list[TaskHandle[Any]]:
        numbered = self._numbered(name or _spawn_name(tasks))
        return await persist(lambda: self._queue.spawn(self.token, tasks, name=numbered))

    async def _outcomes(self, task_ids: Sequence[str], failed: Sequence[FailedDependency]) -> list[Subtask]:
        """The outcomes of finished subtasks, in order; failures as this task continued with them."""
        asked = list(dict.fromkeys(task_ids))
        known: dict[str, Subtask] = {each.task_id: _failed_subtask(each) for each in failed}
        by_root = dict(known)
        for start in range(0, len(asked), PAGE):
            for task in await self._queue.batch.get(asked[start : start + PAGE]):
                if (failure := by_root.get(task.root_task_id)) is not None:
                    known[task.id] = failure._replace(id=task.id, type=task.type)
                elif task.superseded_by is None:
                    known[task.id] = _subtask(task)
        return [known.get(each) or await self._newest(each) for each in task_ids]

    async def _newest(self, task_id: str) -> Subtask:
        """A subtask of an earlier row of this task, or one rerun by a person under a new id."""
        task = await self._queue.get(task_id)
        while task.superseded_by is not None:
            task = await self._queue.get(task.superseded_by)
        return _subtask(task)

    async def sleep_until(self, name: str, at: Time) -> None:
        """Free the slot until this time; the handler is then run again, and continues here.

        Earlier code runs again unless it is a step. Called again under the same name, it is another wait.
        """
        await self._wait(name, until=at)

    async def wait_signal(self, name: str, signal: str, timeout_sec: Duration | None = None) -> Any:
        """Wait until this signal is sent; returns its data, or raises `WaitExpired`."""
        return await self._wait(name, signal=signal, timeout_sec=timeout_sec)

    async def ask(
        self, name: str, question: str, *, schema: Mapping[str, Any] | None = None, timeout_sec: Duration | None = None
    ) -> Any:
        """Ask a person; returns an answer that fits the schema, or raises `WaitExpired`."""
        return await self._wait(name, question=question, schema=schema, timeout_sec=timeout_sec)

    async def _wait(self, name: str, **terms: Any) -> Any:
        self._waited[name] += 1
        numbered = name if self._waited[name] == 1 else f"{name}#{self._waited[name]}"
        await self.book_usage()
        wait = await persist(lambda: self._queue.waits.wait(self.token, numbered, **terms))
        if wait.status == "open":
            raise Suspended
        if wait.status == "expired":
            raise WaitExpired(wait)
        return wait.value

    async def subtasks(self) -> list[Subtask]:
        """Subtasks of this task and their outcomes; empty on the first run."""
        found: list[Subtask] = []
        after: str | None = None
        while True:
            page = await self._queue.tasks.list(parent=self.id, after=after, limit=PAGE)
            found += [_subtask(task) for task in page.tasks if task.superseded_by is None]
            if page.next is None:
                return found
            after = page.next


def _spawn_name(tasks: Sequence[NewTask | Mapping[str, Any]]) -> str:
    """The name of an unnamed spawn, derived from its tasks, which a run of the same code repeats."""
    types = {each.type if isinstance(each, NewTask) else str(each.get("type")) for each in tasks}
    name = f"spawn {', '.join(sorted(types))}"
    return name if len(name) <= MAX_SPAWN_NAME_LENGTH else f"spawn {hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _failed_subtask(failed: FailedDependency) -> Subtask:
    return Subtask(failed.task_id, "", failed.status, None, failed.error, reason=failed.reason)


def _subtask(task: Task) -> Subtask:
    result = task.result
    if result is None:
        return Subtask(task.id, task.type, task.status, None, None)
    return Subtask(task.id, task.type, task.status, result.data, result.error, result.text)


Handler = Callable[[Context], Awaitable[Any]] | Callable[[Context], Any]
"""The handler of one type of task."""
