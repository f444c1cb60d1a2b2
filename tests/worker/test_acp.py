"""Agents that speak the Agent Client Protocol, in real processes."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shiftwork import Queue
from tests.worker.command_runner import ROOT, ask, messages
from tests.worker.started import Started
from tests.worker.steps import PATIENCE_SEC, until, until_status

AGENT = shlex.join([sys.executable, str(ROOT / "tests" / "examples" / "acp_agent.py")])


class AcpRunner(Started):
    """`shiftwork work --acp` on one store."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(folder)
        self.url = url
        self.work_dir = folder / "work"

    def start(self, *options: str) -> int:
        line = [sys.executable, "-m", "shiftwork", "--store", self.url, "work", "--type", "code", "--acp", AGENT]
        line += ["--work-dir", str(self.work_dir), "--kill-after", "0.5", *options]
        return self.spawn(line, self.folder).pid

    def run(self, *options: str) -> None:
        assert self.wait(self.start("--until-idle", *options)) == 0, self.log()

    def wait(self, pid: int) -> int:
        return next(each for each in self._started if each.pid == pid).wait(PATIENCE_SEC)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("ACP_AGENT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def commands(store_url: str, tmp_path: Path, home: Path) -> Iterator[AcpRunner]:
    made = AcpRunner(store_url, tmp_path / "commands")
    try:
        yield made
    finally:
        made.end()


async def test_updates_become_messages_and_the_last_text_the_result(shop: Queue, commands: AcpRunner) -> None:
    task = await ask(shop, "write")
    commands.run("--permissions", "allow")
    done = await shop.get(task)
    assert done.result is not None, commands.log()
    assert (done.result.text, done.session_id) == ("It is written after 1.", "acp-0")
    assert (done.tokens_used["input"], done.tokens_used["output"]) == (70, 7)
    assert (commands.work_dir / task / "made.txt").read_text() == "made\n"
    said = await messages(shop, task)
    assert ("tool_call", "write made.txt") in said
    assert ("tool_call", "allowed: write made.txt") in said
    # Its two parts are two messages if the report of every second came between them.
    words = " ".join(text for kind, text in said if kind == "text")
    assert words.endswith("It is written after 1."), said


async def test_permission_is_denied_unless_it_is_granted(shop: Queue, commands: AcpRunner) -> None:
    task = await ask(shop, "write")
    commands.run()
    assert (await shop.result(task)).text == "It is refused after 1."
    assert not (commands.work_dir / task / "made.txt").exists()
    assert ("tool_call", "denied: write made.txt") in await messages(shop, task)


@pytest.mark.parametrize(
    ("answer", "result"), [("allow", "It is written after 2."), ("deny", "It is refused after 2.")]
)
async def test_person_is_asked_for_permission_without_a_slot(
    sqlite_url: str, tmp_path: Path, home: Path, answer: str, result: str
) -> None:
    commands = AcpRunner(sqlite_url, tmp_path / "commands")
    async with Queue.open(sqlite_url) as shop:
        task = await ask(shop, "write")
        commands.run("--permissions", "ask")
        (wait,) = (await shop.get(task)).waits
        assert (wait.kind, wait.status) == ("person", "open"), commands.log()
        assert str(wait.question).startswith("May the agent do this? write made.txt")
        assert "1 parked" in commands.log()
        await shop.approvals.answer(task, answer)
        commands.run("--permissions", "ask")
        done = await shop.get(task)
        assert (done.status, done.session_id) == ("completed", "acp-0"), commands.log()
        assert (await shop.result(task)).text == result
    commands.end()


async def test_session_is_loaded_after_a_crash_and_its_history_not_repeated(shop: Queue, commands: AcpRunner) -> None:
    task = await ask(shop, "die")
    commands.run()
    done = await shop.get(task)
    assert (done.status, done.attempts, done.session_id) == ("completed", 1, "acp-0"), commands.log()
    assert (await shop.result(task)).text == "back again"
    assert "this was said long ago" not in repr(await messages(shop, task))


async def test_errors_of_the_agent_are_read(shop: Queue, commands: AcpRunner) -> None:
    refused = await ask(shop, "login")
    commands.run()
    assert (await shop.get(refused)).failure_reason == "auth_failure"
    limited = await ask(shop, "fail")
    commands.run()
    task = await shop.get(limited)
    assert (task.status, task.failure_reason, task.attempts) == ("retrying", "rate_limit", 0), task.last_error


async def test_cancelled_task_cancels_the_turn(shop: Queue, commands: AcpRunner, home: Path) -> None:
    task = await ask(shop, "hang")
    pid = commands.start("--max-tasks", "1")
    await until_status(shop, task, "running")

    async def waits() -> bool:
        return ("text", "waiting") in await messages(shop, task)

    await until(waits)
    await shop.cancel(task)
    assert commands.wait(pid) == 0, commands.log()
    assert (home / "cancelled").read_text() == "acp-0"


async def test_instruction_is_a_further_prompt(shop: Queue, commands: AcpRunner) -> None:
    task = await ask(shop, "write")
    await shop.tell(task, "and be kind")
    commands.run("--permissions", "allow")
    session = (commands.folder.parent / "home" / "acp-0.json").read_text()
    assert "write\\n\\nand be kind" in session, commands.log()
