"""The demo: real processes work on a DAG, a failure is retried, and a killed agent loses nothing."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shiftwork.demo.screen import Screen
from shiftwork.model.history import Event
from shiftwork.model.states import FINAL, SETTLED
from shiftwork.model.task import Task
from shiftwork.queue import Queue
from shiftwork.worker.child_process import Start

LANDING_PAGE = {
    "title": "Build a landing page",
    "created_by": "human:ada",
    "tasks": [
        {"key": "research", "type": "research", "title": "Research competitors"},
        {"key": "design", "type": "design", "title": "Design a wireframe"},
        {"key": "implement", "type": "code", "title": "Implement the page"},
        {"key": "synthesize", "type": "synthesis", "title": "Synthesize", "dependencies": ["research", "design"]},
        {"key": "ship", "type": "deploy", "title": "Test and deploy", "dependencies": ["implement", "synthesize"]},
    ],
}
AGENTS = ("otto", "mimi", "juno")
VICTIM = "Implement the page"
KILL_AT_PCT = 40
MAX_SEC = 50.0
SETTINGS = {
    "heartbeat_interval_sec": 1,
    "heartbeat_timeout_sec": 5,  # for systems where a dead process cannot be detected
    "retry.initial_delay_sec": 0.5,
    "retry.jitter": False,
    "maintenance.retry_promoter_sec": 0.25,
}


T = TypeVar("T")


class Summary(msgspec.Struct, kw_only=True):
    """The outcome of the demo."""

    status: str
    tasks: int
    completed: int
    attempts: int
    failed_attempts: int
    killed: str | None
    recovered: str | None
    recovered_by: str | None
    recovery_sec: float | None
    cost_usd: float
    took_sec: float
    store: str | None


def run(*, keep: bool = False, json: bool = False) -> int:
    """Run the demo; the exit code is 0 if every task was completed."""
    ending = StopSignals()
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-demo-"))
    try:
        summary = asyncio.run(ending.of(_play(folder, Screen(quiet=json), keep=keep)))
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return ending.code
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        ending.restore()
    if json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    return 0 if summary.status == "completed" else 1


class StopSignals:
    """Makes SIGTERM and SIGHUP end the demo like Ctrl-C; otherwise, its agents and its folder would be left behind."""

    SIGNALS = (signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.code = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        before = {number: signal.getsignal(number) for number in self.SIGNALS}
        self._before = {number: known for number, known in before.items() if known is not signal.SIG_IGN}
        for number in self._before:  # an ignored signal stays ignored, e.g. SIGHUP under nohup
            signal.signal(number, self._cancel_once)

    async def of(self, play: Coroutine[Any, Any, T]) -> T:
        """Run until cancelled."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self.code:
            play.close()
            raise asyncio.CancelledError
        return await play

    def _cancel_once(self, number: int, _frame: object) -> None:
        """Cancel the demo once; a second signal must not stop the cleanup."""
        if not self.code and self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self.code = 128 + number

    def restore(self) -> None:
        for number, known in self._before.items():
            signal.signal(number, known)


async def _play(folder: Path, screen: Screen, *, keep: bool) -> Summary:
    url = f"sqlite:///{folder / 'demo.db'}"
    async with Queue.open(url) as queue:
        for key, value in SETTINGS.items():
            await queue.settings.set(key, value)
        submitted = await queue.as_caller("human:ada").submit_dag(LANDING_PAGE)
        story = Story(queue, screen, str(submitted[0].dag_id))
        screen.say(f"{len(submitted)} tasks of a landing page are submitted as one DAG, in one SQLite file.", "bold")
        with screen:
            async with _fleet(url, folder) as processes:
                screen.say(f"Agents {', '.join(AGENTS)} start, each in its own process.")
                with suppress(TimeoutError):
                    async with asyncio.timeout(MAX_SEC):
                        await story.watch(processes)
        summary = await story.summary(url if keep else None)
    _print_summary(screen, summary, folder)
    return summary


@asynccontextmanager
async def _fleet(url: str, folder: Path) -> AsyncIterator[dict[str, asyncio.subprocess.Process]]:
    """Start a worker process for each agent; their logs are in the demo's folder."""
    processes: dict[str, asyncio.subprocess.Process] = {}
    with (folder / "agents.log").open("wb") as log:
        try:
            for name in AGENTS:
                start = Start(target="shiftwork.demo.agents:worker", url=url, agent_id=name, runtime_id=name)
                processes[name] = await asyncio.create_subprocess_exec(
                    *start.command, env=start.environment, cwd=_place(folder),
                    stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
            yield processes
        finally:
            await asyncio.gather(*(_stop(process) for process in processes.values()))


def _place(otherwise: Path) -> Path:
    """The current folder, from which a worker imports its module, unless it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return otherwise


async def _stop(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(8):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


class Story:
    """Follows the queue's events, prints them, and kills an agent at the right moment."""

    def __init__(self, queue: Queue, screen: Screen, dag_id: str) -> None:
        self._queue = queue
        self._screen = screen
        self._dag_id = dag_id
        self._began = time.monotonic()
        self._cursor = 0
        self._tasks: dict[str, Task] = {}
        self._killed: str | None = None
        self._killed_at = 0.0
        self._recovered: Event | None = None

    async def watch(self, processes: dict[str, asyncio.subprocess.Process]) -> None:
        while not self._tasks or not all(task.status in FINAL | SETTLED for task in self._tasks.values()):
            page = await self._queue.tasks.list(dag=self._dag_id)
            self._tasks = {task.id: task for task in page.tasks}
            await self._print_news()
            self._screen.show(page.tasks)
            if self._killed is None:
                self._kill(processes)
            await asyncio.sleep(0.08)
        await self._print_news()

    def _kill(self, processes: dict[str, asyncio.subprocess.Process]) -> None:
        """Kill an agent with SIGKILL, so that it cannot clean up."""
        for task in self._tasks.values():
            pct = (task.progress or {}).get("pct", 0)
            if task.title == VICTIM and task.claim.agent_id and KILL_AT_PCT <= pct < 100:
                self._killed, self._killed_at = task.claim.agent_id, self._queue.now()
                processes[self._killed].kill()
                self._print(f"{self._killed} is killed (SIGKILL) at {pct} % of {task.title!r}", "bold red")

    async def _print_news(self) -> None:
        news = await self._queue.events(self._cursor)
        events, self._cursor = news.events, news.next
        for event in events:
            task = self._tasks.get(event.task_id or "")
            if task is not None:
                self._emit(event, task)

    def _emit(self, event: Event, task: Task) -> None:
        agent, data = event.actor.removeprefix("agent:"), event.data or {}
        title = repr(task.title)
        if event.verb == "claimed" and self._is_recovery(event, task, agent):
            self._recovered = event
            after = event.at - self._killed_at
            self._print(
                f"recovered: {agent} takes {title} again, {after:.1f} s after {self._killed} died", "bold green"
            )
        elif event.verb == "claimed":
            self._print(f"{agent} takes {title}")
        elif event.verb == "completed":
            self._print(f"{agent} has finished {title}", "green")
        elif event.verb == "failed":
            wait = f"; retried in {data['delay_sec']:g} s" if "delay_sec" in data else ""
            self._print(f"{agent} failed at {title}: {data.get('error') or event.reason}{wait}", "magenta")
        elif event.verb == "lease_expired":
            self._print(f"{title} is reclaimed from {data.get('agent')}: its process is gone", "magenta")
        elif event.verb == "spawned":
            self._print(f"{agent} adds the subtask {title}")
        elif event.verb == "waited":
            self._print(f"{agent} frees its slot: {title} waits for its subtasks")
        elif event.path and event.path[-1] == "ready" and event.verb == "unblocked":
            self._print(f"{title} is ready: all its dependencies are done", "cyan")

    def _is_recovery(self, event: Event, task: Task, agent: str) -> bool:
        after_the_kill = self._killed is not None and self._recovered is None and event.at >= self._killed_at
        return after_the_kill and task.title == VICTIM and agent != self._killed

    def _print(self, text: str, style: str = "") -> None:
        self._screen.say(f"{time.monotonic() - self._began:5.1f} s  {text}", style)

    async def summary(self, store: str | None) -> Summary:
        dag = await self._queue.dags.get(self._dag_id)
        tasks: Sequence[Task] = await self._queue.batch.get(dag.tasks)
        recovered = self._recovered
        return Summary(
            status=dag.status,
            tasks=dag.total,
            completed=dag.counts.get("completed", 0),
            attempts=sum(task.fence for task in tasks),
            failed_attempts=sum(task.attempts for task in tasks),
            killed=self._killed,
            recovered=VICTIM if recovered else None,
            recovered_by=recovered.actor.removeprefix("agent:") if recovered else None,
            recovery_sec=round(recovered.at - self._killed_at, 3) if recovered else None,
            cost_usd=dag.spent_usd,
            took_sec=round(time.monotonic() - self._began, 1),
            store=store,
        )


def _print_summary(screen: Screen, summary: Summary, folder: Path) -> None:
    screen.say()
    screen.say(f"The DAG is {summary.status}: {summary.completed} of {summary.tasks} tasks completed.", "bold")
    screen.say(f"  attempts   {summary.attempts}, of which {summary.failed_attempts} failed; those tasks were retried")
    if summary.recovered:
        screen.say(
            f"  recovered  {summary.recovered!r}: {summary.killed} was killed, {summary.recovered_by} took it over "
            f"{summary.recovery_sec:.1f} s later and finished it"
        )
    screen.say(f"  cost       {summary.cost_usd:.2f} USD (simulated)")
    screen.say(f"  time       {summary.took_sec:.1f} s")
    screen.say()
    if summary.store is None:
        screen.say("To explore it, keep the file: shiftwork demo --keep")
        return
    screen.say(f"Kept in {folder} (what the agents logged: agents.log). To explore it:")
    screen.say(f"  export SHIFTWORK_STORE={summary.store}")
    screen.say("  shiftwork list              # every task")
    screen.say("  shiftwork show TASK         # one task, with its history")
    screen.say("  shiftwork agents            # the agents")
