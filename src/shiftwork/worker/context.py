"""The handler's context: its task, and what it can call while it runs."""

from __future__ import annotations

import functools
import hashlib
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from shiftwork.worker import mapping, usage_scope
from shiftwork.worker.content import Content
from shiftwork.worker.delivery import clean
from shiftwork.worker.durable import Durable, persist
from shiftwork.worker.inbox import Inbox
from shiftwork.worker.log_sending import LogSender
from shiftwork.worker.trials import run_tests

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
    """Returned by a handler that has more to submit than data."""

    verdict: Any = None
    """What tests said that the handler ran itself: `{"passed": ..., "evidence": ..., "note": ...}`."""
    once_accepted: Callable[[], None] | None = None
    """Called when the queue has accepted the result; not where this process ended before."""


class WaitExpired(Fail):
    """A signal or an answer did not come in time. Not caught, it fails the task: a retry would meet the same."""

    def __init__(self, wait: Wait) -> None:
        super().__init__("wait_expired", f"nothing came of {wait.name!r} in time", retry=False)
        self.wait = wait


class SubtasksFailed(Fail):
    """Subtasks of a map failed or were cancelled. Not caught, it fails the task: a retry would meet the same."""

    def __init__(self, failed: Mapping[int, TaskFailed | TaskCancelled], total: int) -> None:
        named = "; ".join(f"input {place}: {error.what}" for place, error in list(failed.items())[:MAX_NAMED])
        more = f"; and {len(failed) - MAX_NAMED} more" if len(failed) > MAX_NAMED else ""
        super().__init__("subtasks_failed", f"{len(failed)} of {total} subtasks failed: {named}{more}", retry=False)
        self.failed = dict(failed)
        """By the place of its input: the error of each subtask that failed or was cancelled."""


class Release(Exception):
    """Raised by a handler to give its task back without cost."""


class Suspended(BaseException):
    """Ends a handler whose task waits. Not an `Exception`: a handler's `except` must not stop it."""


class Subtask(NamedTuple):
    """A subtask this task has spawned, with what came of it."""

    id: str
    type: str
    status: str
    data: Any
    error: str | None
    text: str | None = None
    """Its result in words: all that a command's output is, unless it prints an object."""
    reason: str | None = None
    """Why it failed or was cancelled."""

    @property
    def completed(self) -> bool:
        return self.status == State.COMPLETED

    @property
    def output(self) -> Any:
        """The data it handed in, or the text where there is no data."""
        return self.text if self.data is None else self.data


class Context(Durable, Content):
    """One attempt at one task. Heartbeats are not a handler's business: the runner sends them."""

    def __init__(
        self,
        queue: AnyQueue,
        assignment: Assignment,
        slow_for: Callable[[], float],
        opened: Mapping[Any, Any] = MappingProxyType({}),
        log_sender: LogSender | None = None,
    ) -> None:
        super().__init__(queue, assignment)
        self._slow_for = slow_for
        self.opened = opened
        """What the worker's lifespans have opened; `Lifespan.of` reads it."""
        self._log_sender = log_sender

    # What most handlers never touch is not made for each of them.
    _task: Task | None = None
    _cancelled = False
    _should_yield = False
    _work_dir: str | None = None
    _inbox: Inbox | None = None
    cost_usd = 0.0
    """What this attempt has cost so far, by what it has noted."""
    spent_so_far = usage_scope.NOTHING
    """The same with tokens and model, booked or not."""
    session_id: str | None = None
    """The conversation that this attempt has pinned."""

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
        """The claim: hand it to whatever must be able to tell this attempt from an older one."""
        return self._assignment.token

    @property
    def model(self) -> str | None:
        """The model to work with, where the task says which it may have: none that rests after a rate limit."""
        return self._assignment.model

    @property
    def account(self) -> str | None:
        """The account to use, where the worker was declared with several."""
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
        """True once no one wants the result. An async handler is interrupted; a plain one must look here."""
        return self._cancelled

    def cancel(self) -> None:
        """The runner's word to a plain function."""
        self._cancelled = True

    @property
    def should_yield(self) -> bool:
        """True once an urgent task waits for this one's place. Raise `Release` at a good place: steps are kept.

        An async handler that continues is interrupted after the worker's `cancel_grace_sec`; a plain one must look
        here.
        """
        return self._should_yield

    @property
    def slow_down_sec(self) -> float:
        """For how many seconds to go slow, since someone met a rate limit; 0 otherwise.

        A handler that calls the same provider may wait this long before it continues: its lease is kept up meanwhile.
        """
        return self._slow_for()

    def inbox(self) -> Inbox:
        """What people and programs say to this task: `async for instruction in ctx.inbox()`, or `await inbox.take()`.

        It begins with all that was sent so far, also to earlier attempts, and goes on with what heartbeats bring.
        """
        if self._inbox is None:
            self._inbox = Inbox(self._queue, self.token)
        return self._inbox

    def receive(self, instructions: Iterable[Instruction]) -> None:
        """What came with a heartbeat, passed on by the runner. Where no one asks, it stays unread in the queue."""
        if self._inbox is not None:
            self._inbox.receive(instructions)

    def ask_to_yield(self) -> None:
        """The queue's wish, passed on by the runner."""
        self._should_yield = True

    async def read(self) -> Task:
        """The whole task as it is now, with its history."""
        return await self._queue.get(self.id)

    async def progress(self, value: Any) -> None:
        """Say how far the work is. While the store is away the report is dropped, and the work continues."""
        try:
            await self._queue.claims.progress(self.token, value)
        except (StoreError, OperationTimeout) as error:
            log.info("could not report the progress of %s: %s", self.id, error)

    async def message(self, text: str, *, kind: MessageKind = "text", data: Mapping[str, Any] | None = None) -> None:
        """Say what is being done: kind is text, tool_call or error. Like progress, only while the store is there."""
        try:
            await self._queue.claims.message(self.token, kind, text, data)
        except (StoreError, OperationTimeout) as error:
            log.info("could not report a message of %s: %s", self.id, error)

    def log(self, text: object, level: LogLevel = "info") -> None:
        """Keep a line with the task, for `shiftwork logs` and the dashboard; also logged as `shiftwork.task`.

        Lines are sent together, about once a second and before the result. They are not kept while the store is away,
        nor once the task is cancelled. A log holds a million characters.
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
        """The verdict of the tests that the task asks for, for `Done`; None where it asks for none.

        They run where the work was done: in the folder that this attempt or one before it pinned, else where we are.
        """
        tests = self._assignment.tests
        if tests is None:
            return None
        until = self._assignment.execution_deadline
        limit = None if until is None else until - self._queue.now()
        return await run_tests(tests, folder or Path(self._work_dir or self.task.work_dir or "."), limit, mark)

    async def report_quota(self, headers: Mapping[str, str]) -> None:
        """Tell the queue how far the account's windows are used, by the headers of a provider's answer."""
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
        """Note what the work has used; it is booked with the result, and also if there is none.

        A cost that is not given is computed from tokens and model by public prices; `tokens_cached` is the part of
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
        """What is noted and not yet booked."""
        if self._noted is None:
            return None
        noted = self._noted.used
        return noted if noted.cost_usd or noted.tokens_in or noted.tokens_out else None

    def take_usage(self) -> Usage | None:
        """The same, for anyone who books it now."""
        used = self.usage()
        self._usage_total.empty()
        return used

    async def book_usage(self) -> None:
        """Book what is noted now; done by itself wherever an attempt ends. Who has spent too much is cancelled.

        What was logged is sent as well.
        """
        if self._log_sender is not None:
            await self._log_sender.send([self.token])
        if used := self.take_usage():
            try:
                answer = await self._queue.heartbeat(self.token, usage=used)
            except (StoreError, OperationTimeout):
                self._record(used)  # it goes with the next report
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

        A spawn is known by its `name`, else by the types of the tasks; the same once more is another spawn, in the
        order of the calls, as with steps.
        """
        return await self._spawn(tasks, name)

    async def spawn_and_wait(
        self,
        tasks: Sequence[NewTask | Mapping[str, Any]],
        *,
        name: str | None = None,
        failures: Failures = "wait",
    ) -> list[Subtask]:
        """Add subtasks and give the slot back until they are done; the handler is then run again, and gets them here.

        That run spawns nothing: it is answered with what the first one spawned, found as `spawn` finds it.

        They are done when they are completed: a subtask that fails for good holds this task until a person has it
        done. With `failures="return"` they are done once they have ended, and each says how: `status`, `reason` and
        `error`. What was returned stays so, even if a person retries a subtask later.
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

        `task` is a type, whose payloads the inputs are, or a typed task. The slot is given back until all have ended;
        the handler is then run again, spawns nothing, and gets the results here. At most `limit` of them run at once.

        If one fails for good or is cancelled, `SubtasksFailed` is raised once all have ended and names those that did.
        With `failures="return"` a `TaskFailed` or `TaskCancelled` stands in its place.
        """
        check.one_of(failures, ("raise", "return"), "failures")
        known_by = self._numbered(name or f"map {task if isinstance(task, str) else task.type}")
        new = mapping.subtasks(task, inputs, limit, f"{self.task.root_task_id} {known_by}")
        if not new:
            return []
        await self.book_usage()
        made = [id_ for part in mapping.batches(new) for id_ in await self._spawn_part(known_by, part)]
        waited = await persist(lambda: self._queue.waits.request(self.token, tasks=made, failures="return"))
        if waited.status != State.RUNNING:
            raise Suspended
        found = [mapping.result_of(task, each) for each in await self._outcomes(made, waited.failed)]
        failed = {place: each for place, each in enumerate(found) if isinstance(each, mapping.FAILED)}
        if failed and failures == "raise":
            raise SubtasksFailed(failed, len(found))
        return found

    async def _spawn_part(self, name: str, part: mapping.Part) -> list[str]:
        """The ids of a part of a map, spawned now or by an earlier run."""
        known_by = f"{name} from {part.start}" if part.start else name
        made = await persist(lambda: self._queue.spawn(self.token, part.tasks, failures="return", name=known_by))
        if len(made) != len(part.tasks):
            hint = "Make the inputs in a step, so that every run of the handler maps the same ones."
            was = f"{name!r} mapped {part.start + len(made)} inputs before, not {part.start + len(part.tasks)}"
            raise InputError(was, where="inputs", hint=hint)
        return [each.id for each in made]

    async def _spawn(self, tasks: Sequence[NewTask | Mapping[str, Any]], name: str | None) -> list[TaskHandle[Any]]:
        numbered = self._numbered(name or _spawn_name(tasks))
        return await persist(lambda: self._queue.spawn(self.token, tasks, name=numbered))

    async def _outcomes(self, task_ids: Sequence[str], failed: Sequence[FailedDependency]) -> list[Subtask]:
        """What came of subtasks that are done, in this order; of those that failed, as this task went on with it."""
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
        """A subtask of an earlier row of this task, or one that a person has had done again under a new id."""
        task = await self._queue.get(task_id)
        while task.superseded_by is not None:
            task = await self._queue.get(task.superseded_by)
        return _subtask(task)

    async def sleep_until(self, name: str, at: Time) -> None:
        """Give the slot back until this time; the handler is then run again, and continues here.

        What is before is done again unless it is a step. Called again under the same name it is another wait.
        """
        await self._wait(name, until=at)

    async def wait_signal(self, name: str, signal: str, timeout_sec: Duration | None = None) -> Any:
        """The same until someone sends this signal; answers its data, or raises `WaitExpired`."""
        return await self._wait(name, signal=signal, timeout_sec=timeout_sec)

    async def ask(
        self, name: str, question: str, *, schema: Mapping[str, Any] | None = None, timeout_sec: Duration | None = None
    ) -> Any:
        """The same until a person has answered; answers what fits the schema, or raises `WaitExpired`."""
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
        """Subtasks of this task and what came of them; empty on the first run."""
        found: list[Subtask] = []
        after: str | None = None
        while True:
            page = await self._queue.tasks.list(parent=self.id, after=after, limit=PAGE)
            found += [_subtask(task) for task in page.tasks if task.superseded_by is None]
            if page.next is None:
                return found
            after = page.next


def _spawn_name(tasks: Sequence[NewTask | Mapping[str, Any]]) -> str:
    """What a spawn without a name is known by: what its tasks are, which a run of the same code repeats."""
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
