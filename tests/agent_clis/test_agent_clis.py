"""Claude Code, Codex, Gemini CLI and OpenCode themselves, as `shiftwork work` runs them.

They are fetched from npm into `.servers/agents` and talk to a model server of this test. Where npm cannot fetch one,
its tests are skipped with the reason. All behaviour with every program takes a minute and a
half, so it runs with SHIFTWORK_DEEP=1; otherwise each program shows that its output is read, and some show the rest.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.worker import session_files
from tests.agent_clis import programs
from tests.agent_clis.model_server import COMMAND, RESET_SEC, TOKENS_IN, TOKENS_OUT, WORDS, ModelServer
from tests.agent_clis.programs import CLIS, MODELS, Cli
from tests.worker.command_runner import ask, messages
from tests.worker.started import Started
from tests.worker.steps import PATIENCE_SEC, until

TURNS = 2
"""Answers of the model that a run without a crash needs: a call of the shell, and the last words."""
DEEP = os.environ.get("SHIFTWORK_DEEP") == "1"


def clis(*names: str) -> pytest.MarkDecorator:
    """Run a test with these programs."""
    chosen = [cli for cli in CLIS if cli.name in names]
    return pytest.mark.parametrize("cli", chosen, ids=lambda cli: cli.name, indirect=True)


EVERY = [cli.name for cli in CLIS]
each_cli = clis(*EVERY)
some_clis = clis(*EVERY if DEEP else ("claude", "codex"))


@pytest.fixture
def cli(request: pytest.FixtureRequest) -> Cli:
    chosen: Cli = request.param
    programs.fetched(chosen.name)
    return chosen


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer().running() as running:
        yield running


@pytest.fixture
async def shop(sqlite_url: str) -> AsyncIterator[Queue]:
    async with Queue.open(sqlite_url) as opened:
        yield opened


class Shop(Started):
    """`shiftwork work` for one program."""

    def __init__(self, url: str, folder: Path, server: ModelServer) -> None:
        super().__init__(folder)
        self.url = url
        self.work_dir = folder / "work"
        self._server = server
        self._environment = programs.environment(server, folder / "home")

    def start(self, cli: Cli, *options: str) -> int:
        line = [sys.executable, "-m", "shiftwork", "--store", self.url, "work", "--type", "code"]
        line += ["--work-dir", str(self.work_dir), "--provider", cli.provider, "--account", "team", "--kill-after", "1"]
        line += [*cli.options, *options, "--", *cli.command(self._server)]
        return self._spawn(line)

    def run_acp(self, command: str, *options: str) -> None:
        line = [sys.executable, "-m", "shiftwork", "--store", self.url, "work", "--type", "code", "--acp", command]
        pid = self._spawn([*line, "--work-dir", str(self.work_dir), "--until-idle", *options])
        assert self.wait(pid) == 0, self.log()

    def _spawn(self, line: list[str]) -> int:
        return self.spawn(["env", "-i", *(f"{n}={v}" for n, v in self._environment.items()), *line], self.folder).pid

    def run(self, cli: Cli, *options: str) -> None:
        pid = self.start(cli, "--until-idle", *options)
        assert self.wait(pid) == 0, self.log()

    def wait(self, pid: int) -> int:
        return next(each for each in self._started if each.pid == pid).wait(PATIENCE_SEC)


@pytest.fixture
def commands(sqlite_url: str, tmp_path: Path, server: ModelServer) -> Iterator[Shop]:
    made = Shop(sqlite_url, tmp_path / "commands", server)
    try:
        yield made
    finally:
        made.end()


@each_cli
async def test_result_session_usage_model_and_tool_calls(
    shop: Queue, commands: Shop, server: ModelServer, cli: Cli
) -> None:
    server.mode = "tool"
    task = await ask(shop, "Make a file.")
    commands.run(cli)
    done = await shop.get(task)
    assert done.status == "completed", commands.log()
    assert done.result is not None
    assert done.result.text == WORDS
    assert (commands.work_dir / task / "made.txt").read_text() == "made\n"
    assert done.session_id
    assert done.tokens_used == {"input": 2 * TOKENS_IN, "output": 2 * TOKENS_OUT}
    assert done.cost_usd > 0, "Codex and Gemini CLI report tokens only, which are priced"
    said = await messages(shop, task)
    assert any(kind == "tool_call" for kind, _ in said), said
    assert any(kind == "text" and WORDS in text for kind, text in said), said
    assert COMMAND in repr((await shop.tasks.history(task, limit=500)).events)
    assert server.answered == TURNS
    (spent,) = (await shop.budgets.costs("model")).costs
    assert spent.value == cli.model


@some_clis
async def test_rate_limit_and_refused_credentials(shop: Queue, commands: Shop, server: ModelServer, cli: Cli) -> None:
    server.mode = "auth"
    task = await ask(shop, "Be refused.")
    commands.run(cli)
    found = await shop.get(task)
    assert (found.status, found.attempts) == ("ready", 0), found.last_error
    (rests,) = await shop.cooldowns.list()
    assert (rests.key, rests.until) == (f"provider:{cli.provider},account:team", None)
    assert str(rests.reason).startswith("refused credentials hit by")
    server.mode = "rate_limit"
    await shop.cooldowns.lift(rests.key)  # its key was renewed
    if cli.name == "opencode":
        return  # it waits for the reset by itself, and prints nothing meanwhile
    commands.run(cli)
    found = await shop.get(task)
    assert (found.status, found.failure_reason, found.attempts) == ("retrying", "rate_limit", 0), [
        (each.reason, (each.error or "")[-1500:]) for each in found.failure_history
    ]
    (slowed,) = [event.data or {} for event in (await shop.events(limit=500)).events if event.verb == "queue_slowdown"]
    signal = slowed["signal"]
    assert (signal["provider"], signal["account"], signal["model"]) == (cli.provider, "team", cli.model)
    if cli.name == "claude":
        assert (signal["window"], signal["scope"]) == ("five_hour", "account")
    (account,) = await shop.accounts.list()
    assert (account.provider, account.account, account.state) == (cli.provider, "team", "resting")
    if cli.name in {"claude", "codex"}:  # Gemini CLI does not print which quota it was
        (window,) = account.windows
        assert (window.name, window.utilization, window.resets_at) == ("five_hour", 1, signal["resets_at"])
        assert RESET_SEC - 120 < (found.available_at or 0) - shop.now() <= RESET_SEC + 60


@clis(*EVERY if DEEP else ("codex",))
async def test_cancelled_agent_ends(shop: Queue, commands: Shop, server: ModelServer, cli: Cli) -> None:
    server.mode = "hang"
    task = await ask(shop, "Never end.")
    pid = commands.start(cli, "--max-tasks", "1")
    await until(server.asked.is_set)
    await shop.cancel(task)
    assert commands.wait(pid) == 0, commands.log()
    assert (await shop.get(task)).status == "cancelled"
    assert running_in(commands.work_dir / task) == []


@some_clis
async def test_killed_agent_resumes_its_session(shop: Queue, commands: Shop, server: ModelServer, cli: Cli) -> None:
    server.mode = "tool"
    task = await ask(shop, "Be killed.")
    server.hangs_after_tool = True
    pid = commands.start(cli)
    await until(lambda: len(server.model_calls()) == 2)

    async def pinned() -> bool:
        return (await shop.get(task)).session_id is not None

    await until(pinned)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: running_in(commands.work_dir / task) == [])
    session = (await shop.get(task)).session_id
    server.hangs_after_tool, server.mode = False, "answer"
    server.released.set()
    commands.run(cli)
    done = await shop.get(task)
    assert (done.status, done.session_id) == ("completed", session), commands.log()
    assert COMMAND in server.model_calls()[-1]["text"], "it did not remember what it had done before"
    assert server.answered == TURNS, "as many as without the crash"
    if cli.name == "codex":  # it reports the sum of the session
        assert done.tokens_used["input"] == 2 * TOKENS_IN


@clis(*session_files.KNOWN if DEEP else ("claude",))
async def test_session_is_resumed_on_another_machine(
    shop: Queue, sqlite_url: str, tmp_path: Path, server: ModelServer, cli: Cli
) -> None:
    failing = tmp_path / "failing"
    failing.write_text('#!/bin/sh\n"$@"\nexit 1\n')
    failing.chmod(0o755)
    task, options = await ask(shop, "Go places."), ["--session-files", cli.name, "--max-tasks", "1"]
    one, two = (Shop(sqlite_url, tmp_path / name, server) for name in ("one", "two"))
    try:
        server.mode = "tool"
        assert one.wait(one.start(replace(cli, line=[str(failing), *cli.line]), *options)) == 0, one.log()
        before = await shop.get(task)
        server.mode = "answer"
        assert two.wait(two.start(cli, *options)) == 0, two.log()
    finally:
        one.end()
        two.end()
    done = await shop.get(task)
    assert (done.status, done.session_id) == ("completed", before.session_id), two.log()
    assert done.work_dir != before.work_dir
    assert COMMAND in server.model_calls()[-1]["text"], "it did not remember what it had done before"
    assert len(server.model_calls()) == 3
    assert done.tokens_used == {"input": 3 * TOKENS_IN, "output": 3 * TOKENS_OUT}
    assert done.cost_usd == pytest.approx(1.5 * before.cost_usd)


@clis(*("gemini", "opencode") if DEEP else ("opencode",))
async def test_agent_client_protocol(shop: Queue, commands: Shop, server: ModelServer, cli: Cli) -> None:
    acp = {"gemini": f"gemini --experimental-acp --model {MODELS['gemini']}", "opencode": "opencode acp"}
    server.mode = "tool"
    task = await ask(shop, "Make a file.")
    commands.run_acp(acp[cli.name], "--permissions", "allow")
    done = await shop.get(task)
    assert done.result is not None, (done.last_error, commands.log())
    assert done.result.text == WORDS
    assert (commands.work_dir / task / "made.txt").read_text() == "made\n"
    assert done.session_id
    assert any(kind == "tool_call" for kind, _ in await messages(shop, task))


def running_in(folder: Path) -> list[str]:
    """Programs that still work there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == folder:
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found
