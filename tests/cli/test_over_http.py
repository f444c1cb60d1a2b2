"""Commands through a server give the same answers as on the database."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from tests.cli.terminal import Run, Terminal
from tests.cli.test_commands import COMMANDS
from tests.client.serving import served

ON_DATABASES = (
    *("migrate", "migrate --check", "maintenance --run"),
    *(line for line, _, _ in COMMANDS if line.startswith(("prove", "soak"))),
)
LINES = [row for row in COMMANDS if row[0] not in {*ON_DATABASES, "doctor"}]  # a server has no folder to be written


class Remote(Terminal):
    """Commands go to a server; calls without a command go to its database."""

    def __init__(self, folder: Path, database: str, server: str) -> None:
        super().__init__(database, folder)
        self.server = server

    def run(self, *line: str, stdin: str | bytes | None = None, **environment: str) -> Run:
        return super().run(*line, stdin=stdin, **{"SHIFTWORK_STORE": self.server, **environment})


@pytest.fixture
def remote(tmp_path: Path, sqlite_url: str) -> Iterator[Remote]:
    with served(sqlite_url, maintenance=False) as server:
        yield Remote(tmp_path, sqlite_url, server.url)


@pytest.fixture
def guarded(tmp_path: Path, sqlite_url: str) -> Iterator[Remote]:
    with served(sqlite_url, maintenance=False, tokens=True) as server:
        yield Remote(tmp_path, sqlite_url, server.url)


@pytest.mark.parametrize(("line", "text", "word"), LINES, ids=[line for line, _, _ in LINES])
def test_command_through_a_server_answers_like_on_the_database(remote: Remote, line: str, text: str, word: str) -> None:
    if not line.startswith(("dlq", "maintenance")):
        remote.done()
        remote.ready()
    assert text in remote.text(*remote.fill(line))
    if not line.startswith(("resume", "alerts acknowledge", "tokens", "claim", "sinks add")):  # which is done once
        assert word.replace(": ", ":") in remote.text(*remote.fill(line), "--json").replace(": ", ":")


@pytest.mark.parametrize("line", ON_DATABASES)
def test_command_needing_the_database_says_so(remote: Remote, line: str) -> None:
    done = remote.run(*line.split())
    assert (done.code, done.out) == (2, "")
    assert "this command needs direct access to the database, not a server (at --store)" in done.err


def test_unreachable_server_is_reported(unused_tcp_port: int) -> None:
    done = Terminal(f"http://127.0.0.1:{unused_tcp_port}").run("list")
    assert done.code == 5
    assert f"http://127.0.0.1:{unused_tcp_port} cannot be reached" in done.err


def secret(remote: Remote, workspace: str, *scopes: str) -> str:
    async def make() -> str:
        async with Queue.open(remote.url, workspace=workspace) as queue:
            return (await queue.tokens.create("ada", scopes)).secret

    return asyncio.run(make())


def test_token_is_taken_from_option_or_environment(guarded: Remote) -> None:
    known = secret(guarded, "lab", "submit")
    assert guarded.run("list").code == 6
    assert guarded.run("--token", known, "submit", "code").code == 0
    assert guarded.run("submit", "code", "--token", known).code == 0
    done = guarded.run("list", "--json", SHIFTWORK_TOKEN=known)
    assert (done.code, done.out.count('"workspace_id": "lab"')) == (0, 2)
    assert guarded.run("list", "--workspace", "default", SHIFTWORK_TOKEN=known).code == 3
    refused = guarded.run("pause", SHIFTWORK_TOKEN=known)
    assert refused.code == 6
    assert "needs the scope operate" in refused.err


def test_claim_accepts_a_server_token_like_every_command(guarded: Remote) -> None:
    known = secret(guarded, "default", "submit", "work")
    guarded.run("submit", "code", SHIFTWORK_TOKEN=known)
    done = guarded.run("--token", known, "claim", "--agent", "crab", "--print-token")
    assert (done.code, done.out.strip()[-2:]) == (0, ".1")
    guarded.run("submit", "code", SHIFTWORK_TOKEN=known)
    assert guarded.run("claim", "--agent", "eel", "--token", known).code == 0


def test_doctor_checks_what_a_server_reports(guarded: Remote) -> None:
    known = secret(guarded, "default", "admin")
    guarded.run("submit", "code", SHIFTWORK_TOKEN=known)
    done = guarded.run("doctor", "--json", SHIFTWORK_TOKEN=known)
    assert done.code == 0, done.err
    found = {finding["check"]: finding for finding in json.loads(done.out)}
    assert set(found) >= {"server", "clock", "waiting", "maintenance"}
    assert found["server"]["what"].startswith(f"{guarded.server} answered after ")
    assert found["waiting"]["what"] == "1 task (code): no registered agent can take it: it needs type code"
    limited = secret(guarded, "default", "read")
    levels = {finding["level"] for finding in json.loads(guarded.run("doctor", "--json", SHIFTWORK_TOKEN=limited).out)}
    assert "error" not in levels


def test_doctor_reports_a_refused_token_and_an_absent_server(guarded: Remote, unused_tcp_port: int) -> None:
    done = guarded.run("doctor", SHIFTWORK_TOKEN="sw_wrong")
    assert done.code == 1
    assert "error  server" in done.out
    absent = Terminal(f"http://127.0.0.1:{unused_tcp_port}").run("doctor")
    assert absent.code == 1
    assert "cannot be reached" in absent.out


def test_work_passes_its_token_on(guarded: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    data: dict[str, Any] = {}

    def run(target: str, **options: Any) -> int:
        data.update(options, target=target, token=os.environ["SHIFTWORK_TOKEN"])
        return 0

    monkeypatch.setattr("shiftwork.worker.load_worker.run", run)
    monkeypatch.setenv("SHIFTWORK_TOKEN", "")
    assert guarded.run("work", "app:worker", "--token", "sw_secret").code == 0
    assert (data["url"], data["token"]) == (guarded.server, "sw_secret")
