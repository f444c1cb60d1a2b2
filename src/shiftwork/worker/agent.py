"""A worker whose handler is a command: any agent that can be started from a shell does tasks, under the same rules."""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shiftwork.model import reasons
from shiftwork.model.task import Task
from shiftwork.operation.interface import AnyQueue
from shiftwork.worker import exits, program
from shiftwork.worker.context import Context, Done, Fail
from shiftwork.worker.delivery import Summary
from shiftwork.worker.folders import Folders, WorkFolder
from shiftwork.worker.group import Group, Run
from shiftwork.worker.live_report import ProgressReporter
from shiftwork.worker.output import Final, Transcript
from shiftwork.worker.program import Call, Program
from shiftwork.worker.worker import Worker, default_agent_id

log = logging.getLogger("shiftwork.worker")
T = TypeVar("T")
REPORT_SEC = 5.0
"""After a command was ended there is this long to bury it, and this long to tell its last words."""


class AgentWorker(Worker):
    """Runs a program for every task."""

    def __init__(self, given: Program) -> None:
        super().__init__(
            given.agent_id,
            concurrency=1,
            capabilities=given.capabilities,
            models=given.models,
            provider=given.provider,
            account=given.account,
            workspace=given.workspace,
            stop_grace_sec=given.stop_grace_sec,
            cancel_grace_sec=given.kill_after_sec + 2 * REPORT_SEC,
        )
        self._program = given
        self._folders = Folders(Path(given.work_dir))
        for type_ in dict.fromkeys(given.types):  # a type that is named twice is done once
            self.handler(type_)(self._do)

    async def run(
        self,
        store: str | AnyQueue,
        *,
        until_idle: bool = False,
        max_tasks: int | None = None,
        runtime_id: str | None = None,
    ) -> Summary:
        """As any worker; besides, no process of a command outlives the runner that started it."""
        self._folders.make()
        self.agent_id = self.agent_id or default_agent_id()
        if killed := await asyncio.to_thread(self._folders.end_orphans):
            log.warning("%d processes that an earlier runner left behind were ended", killed)
        with self._folders.kept():
            return await super().run(store, until_idle=until_idle, max_tasks=max_tasks, runtime_id=runtime_id)

    async def _do(self, context: Context) -> Done:
        """The handler of all types: one run of the command."""
        async with self._folders.take(self._folders.of(context.task)) as place:
            call = self._call(context, place)
            done = await _Attempt(self._program, context, call, place).run(str(self.agent_id))
            place.announce(Run(place.mark))  # its tests, where it has any, outlive no runner either
            if not self._program.no_test_pass:
                done = msgspec.structs.replace(done, verdict=await context.run_tests(place.path, place.mark))
        if self._program.clean and self._folders.made(place.path):
            return msgspec.structs.replace(done, once_accepted=functools.partial(_remove, place.path))
        return done

    def _call(self, context: Context, place: WorkFolder) -> Call:
        task = context.task
        task_file = place.file("task", program.task_json(task))
        session_id = task.session_id if self._made_here(task, place) else None
        return Call(task, context.token, place.path, task_file, session_id)

    def _made_here(self, task: Task, place: WorkFolder) -> bool:
        """A session is resumed where it was made: agents keep theirs by machine and folder."""
        return task.work_dir is None or (place.existed and self._folders.named(task) == place.path)


def _remove(path: Path) -> None:
    """Off the loop: a folder may hold a hundred thousand files."""
    remove = functools.partial(shutil.rmtree, path, ignore_errors=True)
    asyncio.get_running_loop().run_in_executor(None, remove)


class _Attempt:
    """One run of the program for one task."""

    def __init__(self, given: Program, context: Context, call: Call, place: WorkFolder) -> None:
        self._program = given
        self._context = context
        self._call = call
        self._place = place
        self._transcript = Transcript(given.output)
        self._reporter = ProgressReporter(context, self._transcript, str(place.path))
        self._final: Final | None = None
        self._stderr = ""

    async def run(self, agent_id: str) -> Done:
        await self._reporter.report()  # where it works, before it does
        group = self._start(agent_id)
        reporting = asyncio.create_task(self._reporter.report_until_stopped())
        in_time = False
        try:
            await group.listen(self._reporter.feed, self._feed_stderr)
            in_time = await self._ended_in_time(group)
        finally:
            code = await undisturbed(self._end(group, reporting, by_itself=in_time))
        return self._interpret(code, in_time=in_time)

    def _start(self, agent_id: str) -> Group:
        """The mark is noted before there is anything to find by it: we may die at any instruction."""
        given, call = self._program, self._call
        arguments = program.arguments(given, call)
        environment = program.environment(given, call, agent_id)
        stdin = self._place.file("stdin", program.feed(given, call))
        self._place.announce(Run(self._place.mark))
        try:
            group = Group.start(
                arguments, folder=call.work_dir, environment=environment, stdin=stdin, mark=self._place.mark
            )
        except (OSError, ValueError) as error:
            raise Fail(reasons.RESOURCE_UNAVAILABLE, f"cannot start {arguments[0]}: {error}") from error
        self._place.announce(group.run)
        return group

    def _feed_stderr(self, data: bytes) -> None:
        words = data.decode("utf-8", "replace")
        self._stderr = (self._stderr + words)[-exits.MAX_TAIL_LENGTH :]
        self._reporter.feed_stderr(words)

    async def _ended_in_time(self, group: Group) -> bool:
        try:
            async with asyncio.timeout(self._limit_sec()):
                await group.ended()
        except TimeoutError:
            return False
        return True

    def _limit_sec(self) -> float | None:
        """How long the queue lets it run, by our own clock."""
        task = self._call.task
        until, since = task.claim.execution_deadline, task.started_at or task.claimed_at
        return None if until is None or since is None else max(0.0, until - since)

    async def _end(self, group: Group, reporting: asyncio.Task[None], *, by_itself: bool) -> int:
        """End all of its processes, then tell what is left to tell."""
        if not by_itself:
            await group.terminate(self._program.kill_after_sec)
        code = await group.reap()
        self._final = self._transcript.end()
        self._reporter.stop()
        if (await asyncio.wait({reporting}, timeout=REPORT_SEC))[1]:
            reporting.cancel()
        return code

    def _interpret(self, code: int, *, in_time: bool) -> Done:
        if not in_time:
            what = f"it ran longer than the {self._limit_sec():g} s it may"
            raise Fail(reasons.TIMEOUT, exits.error_text(what, self._final, self._stderr))
        transcript = self._transcript
        return exits.interpret(
            code, self._final, self._stderr, cut=transcript.cut, facts=transcript.facts, now=time.time()
        )


async def undisturbed(ending: Coroutine[Any, Any, T]) -> T:
    """Run to its end, anyone who cancels us meanwhile; that is heard afterwards."""
    task = asyncio.ensure_future(ending)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled and not task.cancelled():
        raise asyncio.CancelledError
    return task.result()


def worker_of(target: str) -> AgentWorker:
    """The worker behind `Program.target()`."""
    return AgentWorker(program.check(program.from_target(target)))
