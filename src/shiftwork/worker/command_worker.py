"""A worker whose handler is a command: runs any agent that can be started from a shell, under the same rules."""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
from pathlib import Path

import msgspec

from shiftwork.model.task import Task
from shiftwork.operation.interface import AnyQueue
from shiftwork.worker import command_line, worktrees
from shiftwork.worker.command_attempt import REPORT_SEC, CommandAttempt, SessionGone
from shiftwork.worker.command_line import Call, Program
from shiftwork.worker.context import Context, Done, Fail
from shiftwork.worker.delivery import Summary
from shiftwork.worker.process_group import Run
from shiftwork.worker.session_files import SessionStore
from shiftwork.worker.work_folders import Folders, WorkFolder
from shiftwork.worker.worker import Worker, default_agent_id
from shiftwork.worker.worktrees import Repository

log = logging.getLogger("shiftwork.worker")


class AgentWorker(Worker):
    """Runs a program for every task."""

    def __init__(self, given: Program) -> None:
        super().__init__(
            given.agent_id,
            concurrency=1,
            capabilities=given.capabilities,
            models=given.models,
            provider=given.provider,
            accounts=given.accounts,
            workspace=given.workspace,
            stop_grace_sec=given.stop_grace_sec,
            cancel_grace_sec=given.kill_after_sec + 2 * REPORT_SEC,
            claim_ahead=False,
        )
        self._program = given
        self._folders = Folders(Path(given.work_dir))
        for type_ in dict.fromkeys(given.types):  # drops duplicate types
            self.handler(type_)(self._do)

    async def run(
        self,
        store: str | AnyQueue,
        *,
        until_idle: bool = False,
        max_tasks: int | None = None,
        runtime_id: str | None = None,
    ) -> Summary:
        """Run like any worker, and make sure that no process of a command outlives its runner."""
        self._folders.make()
        self.agent_id = self.agent_id or default_agent_id()
        if killed := await asyncio.to_thread(self._folders.end_orphans):
            log.warning("ended %d processes that an earlier runner left behind", killed)
        with self._folders.kept():
            return await super().run(store, until_idle=until_idle, max_tasks=max_tasks, runtime_id=runtime_id)

    async def _do(self, context: Context) -> Done:
        """The handler of all types: one run of the command."""
        async with self._folders.take(self._folders.of(context.task)) as place:
            if self._program.worktree is not None:
                await asyncio.to_thread(worktrees.enter, self._program.worktree, context.task, place.path)
            try:
                done = await self._run_agent(context, place)
            except Fail:
                await self._keep_diff(context, place)
                raise
            place.announce(Run(place.mark))  # its tests must not outlive the runner either
            if not self._program.no_test_pass:
                done = msgspec.structs.replace(done, verdict=await context.run_tests(place.path, place.mark))
            if (patch := await self._keep_diff(context, place)) is not None:
                done = msgspec.structs.replace(done, artifacts=[*done.artifacts, patch])
        if self._program.clean and self._folders.made(place.path):
            remove = functools.partial(_remove, place.path, self._program.worktree)
            return msgspec.structs.replace(done, once_accepted=remove)
        return done

    async def _run_agent(self, context: Context, place: WorkFolder) -> Done:
        """Start or resume the agent; if its session is gone, start a new one."""
        pattern = self._program.session_files
        store = None if pattern is None else SessionStore(context, pattern, place.path)
        call = await self._call(context, place, store)
        try:
            return await self._run_once(context, call, place, store)
        except SessionGone:
            await context.message(f"the agent has no session {call.session_id}; starting a new one", kind="error")
            return await self._run_once(context, msgspec.structs.replace(call, session_id=None), place, store)

    async def _run_once(self, context: Context, call: Call, place: WorkFolder, store: SessionStore | None) -> Done:
        attempt = self._attempt(context, call, place)
        if store is None:
            return await attempt.run(str(self.agent_id))
        saving = asyncio.create_task(store.save_forever(lambda: attempt.session_id))
        try:
            done = await attempt.run(str(self.agent_id))
        except Fail:
            await store.save(attempt.session_id)
            raise
        finally:
            saving.cancel()
        await store.save(attempt.session_id)
        return done

    async def _keep_diff(self, context: Context, place: WorkFolder) -> str | None:
        """Store the diff of the task's worktree; returns the artifact's id."""
        if (repository := self._program.worktree) is None:
            return None
        found = await asyncio.to_thread(worktrees.diff, repository, context.task, place.path)
        if not found:
            return None
        name = f"{context.task.root_task_id}.patch"
        return (await context.put_artifact(found, name=name, media_type="text/x-diff")).id

    def _attempt(self, context: Context, call: Call, place: WorkFolder) -> CommandAttempt:
        if not self._program.acp:
            return CommandAttempt(self._program, context, call, place)
        from shiftwork.worker.acp_attempt import AcpAttempt  # noqa: PLC0415  # its SDK is an extra

        return AcpAttempt(self._program, context, call, place)

    async def _call(self, context: Context, place: WorkFolder, store: SessionStore | None) -> Call:
        task = context.task
        task_file = place.file("task", command_line.task_json(task))
        session_id = task.session_id
        if store is not None and session_id is not None:
            session_id = session_id if await store.restore(session_id) else None
        elif not self._made_here(task, place):
            session_id = None
        return Call(task, context.token, place.path, task_file, session_id, place.file("inbox", b""))

    def _made_here(self, task: Task, place: WorkFolder) -> bool:
        """A session can only be resumed where it was created: agents store sessions by machine and folder."""
        return task.work_dir is None or (place.existed and self._folders.named(task) == place.path)


def _remove(path: Path, worktree: Repository | None) -> None:
    """Remove the folder in a thread: it may contain a hundred thousand files."""

    def remove() -> None:
        shutil.rmtree(path, ignore_errors=True)
        if worktree is not None:
            worktrees.forget(worktree)

    asyncio.get_running_loop().run_in_executor(None, remove)


def worker_of(target: str) -> AgentWorker:
    """The worker behind `Program.target()`."""
    return AgentWorker(command_line.check(command_line.from_target(target)))
