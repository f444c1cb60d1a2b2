"""Runs a command for one task: starts it, reads its output, reports, ends it and interprets the result."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from shiftwork.model import reasons
from shiftwork.model.errors import OperationTimeout, ShiftworkError, StoreError
from shiftwork.model.reports import Instruction
from shiftwork.worker import command_line, exit_status
from shiftwork.worker.command_line import Call, Program
from shiftwork.worker.context import Context, Done, Fail
from shiftwork.worker.live_report import ProgressReporter, Use
from shiftwork.worker.output import Final, RunUsage, Transcript
from shiftwork.worker.process_group import Group, Run
from shiftwork.worker.work_folders import WorkFolder

log = logging.getLogger("shiftwork.worker")
T = TypeVar("T")
REPORT_SEC = 5.0
"""How long reaping an ended command may take, and how long its final report may take."""


class SessionGone(Exception):
    """Raised if the agent does not know the session to resume: it stores none that ended before its first answer."""


class CommandAttempt:
    """One run of the program for one task."""

    def __init__(self, given: Program, context: Context, call: Call, place: WorkFolder) -> None:
        self._program = given
        self._context = context
        self._call = call
        self._place = place
        self._transcript = Transcript("stream-json" if given.acp else given.output, _booked_before(call))
        model = context.model or (given.models[0] if len(given.models) == 1 else None)
        account = context.account or (given.accounts[0] if len(given.accounts) == 1 else None)
        self._use = Use(given.provider, account, model)
        self._reporter = ProgressReporter(context, self._transcript, str(place.path), self._use)
        self._final: Final | None = None
        self._stderr = ""

    @property
    def session_id(self) -> str | None:
        """The agent's session, once reported; until then, the one that it resumes."""
        return self._transcript.session_id or self._call.session_id

    async def run(self, agent_id: str) -> Done:
        await self._reporter.report()  # the folder, before the work starts
        await self._instruct()  # earlier instructions are in place before it starts
        group = self._start(agent_id)
        listening = asyncio.create_task(self._instruct_until_stopped())
        reporting = asyncio.create_task(self._reporter.report_until_stopped())
        in_time = False
        try:
            in_time = await self._work(group)
        finally:
            listening.cancel()
            code = await undisturbed(self._end(group, reporting, by_itself=in_time))
        return self._interpret(code, in_time=in_time)

    async def _work(self, group: Group) -> bool:
        """Wait for the command; returns whether it ended by itself within its time limit."""
        await group.listen(self._reporter.feed, self._feed_stderr)
        return await self._ended_in_time(group)

    async def _instruct(self) -> None:
        """Write the task's instructions to the file. A command continues even if the store is unreachable."""
        try:
            self._write_down(await self._context.inbox().take())
        except (StoreError, OperationTimeout) as error:
            log.info("could not read the instructions of %s: %s", self._call.task.id, error)

    async def _instruct_until_stopped(self) -> None:
        while True:
            try:
                async for each in self._context.inbox():
                    self._write_down([each])
            except (StoreError, OperationTimeout):
                await asyncio.sleep(REPORT_SEC)
            except ShiftworkError as error:  # the claim is lost: the runner notices that itself
                log.info("no more instructions for %s: %s", self._call.task.id, error)
                return

    def _write_down(self, instructions: Sequence[Instruction]) -> None:
        with self._call.inbox.open("ab") as file:
            for each in instructions:
                file.write(msgspec.json.encode(each) + b"\n")

    def _start(self, agent_id: str) -> Group:
        """Record the mark before the process exists, because we may crash at any point."""
        given, call = self._program, self._call
        arguments = command_line.arguments(given, call)
        environment = command_line.environment(given, call, agent_id)
        stdin = None if given.acp else self._place.file("stdin", command_line.feed(given, call))
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
        self._stderr = (self._stderr + words)[-exit_status.MAX_TAIL_LENGTH :]
        self._reporter.feed_stderr(words)

    async def _ended_in_time(self, group: Group) -> bool:
        try:
            async with asyncio.timeout(self._limit_sec()):
                await group.ended()
        except TimeoutError:
            return False
        return True

    def _limit_sec(self) -> float | None:
        """The time limit set by the queue, on our own clock."""
        task = self._call.task
        until, since = task.claim.execution_deadline, task.started_at or task.claimed_at
        return None if until is None or since is None else max(0.0, until - since)

    async def _end(self, group: Group, reporting: asyncio.Task[None], *, by_itself: bool) -> int:
        """End all of its processes, then send the final report."""
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
            what = f"it exceeded its time limit of {self._limit_sec():g} s"
            raise Fail(reasons.TIMEOUT, exit_status.error_text(what, self._final, self._stderr))
        if self._call.session_id is not None and exit_status.session_is_gone(code, self._final, self._stderr):
            raise SessionGone
        cut, facts = self._transcript.cut, self._facts()
        return exit_status.interpret(code, self._final, self._stderr, cut=cut, facts=facts, now=time.time())

    def _facts(self) -> exit_status.Facts:
        """What is known of the provider's answer, and of the provider, account and model called."""
        use = self._use._replace(model=self._transcript.model or self._use.model)
        return exit_status.Facts(
            self._transcript.facts, {name: value for name, value in use._asdict().items() if value}
        )


def _booked_before(call: Call) -> RunUsage | None:
    """The task's usage so far, if this run resumes its session: Codex counts the whole session."""
    used = call.task.tokens_used
    return None if call.session_id is None else RunUsage(0.0, used.get("input", 0), used.get("output", 0))


async def undisturbed(ending: Coroutine[Any, Any, T]) -> T:
    """Run to the end despite cancellations, which are raised afterwards."""
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
