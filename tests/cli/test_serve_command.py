"""`shiftwork serve` reports where it serves, or why it cannot."""

import json
import socket
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.server.processes import start


def test_public_host_requires_tokens(terminal: Terminal) -> None:
    done = terminal.run("serve", "--host", "0.0.0.0")  # noqa: S104  # which is refused
    assert done.code == 2
    assert "--tokens" in done.err


def test_public_host_forbids_the_test_clock(terminal: Terminal) -> None:
    done = terminal.run("serve", "--host", "0.0.0.0", "--tokens", "--test-clock")  # noqa: S104  # which is refused
    assert done.code == 2
    assert "only allowed on loopback" in done.err


def test_port_in_use_is_named(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = terminal.run("serve", "--port", port)
    assert done.code == 2
    assert f"port {port}" in done.err


@pytest.mark.parametrize("host", ["nosuch.invalid", "203.0.113.7", "a" * 64])
def test_foreign_host_address_is_named(terminal: Terminal, host: str) -> None:
    done = terminal.run("serve", "--host", host, "--port", "0", "--tokens")
    assert done.code == 2
    assert f"cannot listen on {host}" in done.err
    assert "--host" in done.err
    assert "port" not in done.err


def test_unwritable_log_file_is_named(terminal: Terminal, tmp_path: Path) -> None:
    done = terminal.run("serve", "--log-file", str(tmp_path / "nowhere" / "x"))
    assert done.code == 2
    assert "nowhere/x cannot be written: No such file or directory" in done.err
    assert "--log-file" in done.err


def test_workspace_option_is_refused_for_serve(terminal: Terminal) -> None:
    done = terminal.run("serve", "--workspace", "mine")
    assert done.code == 2
    assert "all workspaces" in done.err


def test_missing_database_is_reported_before_serving(terminal: Terminal) -> None:
    done = terminal.run("serve", "--port", "0", "--store", "postgresql://127.0.0.1:1/none")
    assert done.code == 5
    assert "cannot be reached" in done.err


async def test_log_is_one_json_object_per_line(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    url = f"sqlite:///{tmp_path}/q.db"
    async with await start(url, "--log-format", "json", "--log-file", str(log)) as server:
        assert await server.stop() == 0
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert lines
    assert all({"at", "level", "logger", "message"} <= line.keys() for line in lines)


async def test_different_profile_in_force_is_logged(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    url = f"sqlite:///{tmp_path}/q.db"
    for profile in ("standard", "aegis"):
        async with await start(url, "--profile", profile, "--log-file", str(log)) as server:
            await server.stop()
    assert "has the profile standard, not aegis" in log.read_text(encoding="utf-8")
