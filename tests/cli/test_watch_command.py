"""`watch` on its own terminal: it updates itself, ends with a key, and restores the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shiftwork import Queue
from tests.cli.terminal import Terminal

PATIENCE_SEC = 30.0


class Screen:
    """A pseudo-terminal with a program on it."""

    def __init__(self, master: int, slave: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self.slave = slave
        self.process = process
        self.seen = ""

    def wait_for(self, text: str) -> None:
        while text not in self.seen:
            ready, _, _ = select.select([self._master], [], [], PATIENCE_SEC)
            assert ready, f"{text!r} did not come; the screen says {self.seen[-2000:]!r}"
            self.seen += os.read(self._master, 65536).decode(errors="replace")

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())


@contextmanager
def screen(store: str, *options: str, term: str = "xterm-256color") -> Iterator[Screen]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 140, 0, 0))
    environment = {**os.environ, "SHIFTWORK_STORE": store, "TERM": term}
    command = [sys.executable, "-m", "shiftwork", "watch", "--every", "0.2", *options]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    try:
        yield Screen(master, slave, process)
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)


def test_watch_updates_itself_and_ends_on_a_key(terminal: Terminal) -> None:
    terminal.text("migrate")
    terminal.text("submit", "code", "--title", "The first")
    before = None
    with screen(terminal.url) as shown:
        before = termios.tcgetattr(shown.slave)
        shown.wait_for("Running (0)")
        terminal.on_queue(lambda queue: queue.claim("ada", start=True))
        shown.wait_for("Running (1)")
        shown.wait_for("The first")
        shown.press("q")
        assert shown.process.wait(PATIENCE_SEC) == 0
        assert termios.tcgetattr(shown.slave) == before


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_dumb_terminal_gets_repeated_output_without_codes(terminal: Terminal, term: str) -> None:
    terminal.ready()
    with screen(terminal.url, term=term) as shown:
        shown.wait_for("Running (0)")
        terminal.on_queue(lambda queue: queue.claim("ada", start=True))
        shown.wait_for("Running (1)")
        shown.press("q")
        assert shown.process.wait(PATIENCE_SEC) == 0
    assert "\x1b" not in shown.seen


def test_no_color_variable_disables_colour_in_watch(terminal: Terminal) -> None:
    terminal.text("migrate")
    terminal.text("submit", "code")
    out = terminal.run("watch", "--once", NO_COLOR="1").out
    assert "ready" in out
    assert "\x1b[3" not in out


def test_watch_without_a_terminal_prints_once(terminal: Terminal) -> None:
    terminal.ready()
    assert "Agents (" in terminal.text("watch")


def test_paused_queue_and_approvals_are_shown_at_the_top(terminal: Terminal) -> None:
    terminal.text("migrate")
    terminal.text("settings", "set", "guards", '[{"type": "deploy"}]')
    terminal.text("submit", "deploy")
    terminal.text("pause")
    out = terminal.text("watch", "--once")
    assert "PAUSED" in out
    assert "1 wait for a person (shiftwork approvals)" in out


def test_reason_that_nothing_runs_is_shown_at_the_top(terminal: Terminal) -> None:
    terminal.text("migrate")
    terminal.text("submit", "deploy")
    out = terminal.text("watch", "--once")
    assert "Work waits, but nothing is running" in out
    assert "1 task (deploy): no registered agent can take it: it needs type deploy" in out
    assert terminal.json("watch", "--once")["blocked"]["causes"][0]["kind"] == "no_agent"


HOSTILE = "\x1b]0;owned\x07\x1b[2J[link=file:///etc/passwd]click[/link][/x]\u202e"


@pytest.mark.parametrize("progress", [{"pct": "soon"}, {"pct": 1e9}, {"pct": -5}, {"pct": True}, {"pct": None}])
def test_agent_and_task_text_is_shown_as_plain_text(terminal: Terminal, progress: dict[str, Any]) -> None:
    terminal.text("migrate")

    async def run_hostile(queue: Queue) -> None:
        await queue.submit(type="code[/x]", title=HOSTILE)
        (assignment,) = await queue.claim("ada[bold]", start=True)
        await queue.claims.progress(assignment.token, progress)

    terminal.on_queue(run_hostile)
    with screen(terminal.url) as shown:
        shown.wait_for("Running (1)")
        shown.wait_for("ada[bold]")
        shown.wait_for("code[/x]")
        shown.wait_for("\\x1b]0;owned")
        shown.press("q")
        assert shown.process.wait(PATIENCE_SEC) == 0
    assert not any(code in shown.seen for code in ("\x1b]0;", "\x1b]8;", "\u202e"))
