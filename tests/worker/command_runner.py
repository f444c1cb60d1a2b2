"""A command runner in a separate process, and helpers for its tests."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shiftwork import Queue
from tests.worker.started import Started
from tests.worker.steps import PATIENCE_SEC, until, until_status

ROOT = Path(__file__).resolve().parents[2]
AGENT = [sys.executable, str(ROOT / "tests" / "examples" / "fake_agent.py")]
AS_AGENT = ["--stdin", "prompt", "--output", "stream-json", "--resume-args", "--resume {session_id}"]


class CommandRunner(Started):
    """`shiftwork work -- COMMAND` on one store, in as many processes as a test wants."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(folder)
        self.url = url
        self.work_dir = folder / "work"

    def start(self, command: list[str], *options: str) -> subprocess.Popen[bytes]:
        """Run the command for every task, in a process of its own."""
        line = [sys.executable, "-m", "shiftwork", "--store", self.url, "work", "--type", "code"]
        line += ["--work-dir", str(self.work_dir), *options, "--", *command]
        return self.spawn(line, self.folder)

    def start_agent(self, *options: str) -> subprocess.Popen[bytes]:
        return self.start(AGENT, *AS_AGENT, *options)

    def run(self, command: list[str], *options: str) -> None:
        """Run until idle."""
        runner = self.start(command, "--until-idle", *options)
        assert runner.wait(PATIENCE_SEC) == 0, self.log()

    def run_agent(self, *options: str) -> None:
        self.run(AGENT, *AS_AGENT, *options)

    def family(self, task_id: str) -> list[int]:
        """Return the processes that the fake agent has started, once both run."""
        file = self.work_dir / task_id / "family"
        pids = [int(line) for line in file.read_text().split()] if file.exists() else []
        return pids if len(pids) == 2 else []

    def agents(self, task_id: str) -> list[int]:
        """The processes of the fake agent that have worked on a task, in order."""
        sessions = self.work_dir / task_id / ".sessions"
        return [int(pid) for file in sorted(sessions.glob("*")) for pid in file.read_text().split()]


@contextmanager
def desk_on(url: str, tmp_path: Path) -> Iterator[CommandRunner]:
    made = CommandRunner(url, tmp_path / "commands")
    try:
        yield made
    finally:
        made.end()


def alive(pid: int) -> bool:
    """Return whether the process runs and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


async def ask(queue: Queue, prompt: str, **fields: Any) -> str:
    """Submit a task for the agent, with immediate retries."""
    own = {"retry": {"strategy": "immediate"}, **fields}
    return (await queue.submit(type="code", spec={"prompt": prompt}, **own)).id


async def begun(queue: Queue, mcp_server: CommandRunner, task_id: str) -> list[int]:
    """Wait for the child processes of a running agent and return them."""
    await until_status(queue, task_id, "running")
    await until(lambda: bool(mcp_server.family(task_id)))
    return mcp_server.family(task_id)


async def messages(queue: Queue, task_id: str) -> list[tuple[str, str]]:
    """Return the messages of a task: kind and text."""
    events = [
        event.data or {} for event in (await queue.tasks.history(task_id, limit=5000)).events if event.verb == "message"
    ]
    return [(data["kind"], data["text"]) for data in events]
