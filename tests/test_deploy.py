"""The files of deploy/ are valid: their commands parse, and the files they name exist."""

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from shiftwork.cli.root import main
from shiftwork.server.routes import ENDPOINTS

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"


def _unit(name: str = "shiftwork.service") -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read(DEPLOY / name, encoding="utf-8")
    return parser


def _docker(word: str) -> list[str]:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    found = re.findall(rf"^{word} (\[.*\])$", text, re.MULTILINE)
    return [str(part) for part in json.loads(found[-1])]


def _compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


def _accepts(arguments: list[str]) -> click.Context:
    """Parse a command line with click, without running it."""
    name, command, rest = main.resolve_command(click.Context(main), arguments)
    assert command is not None
    return command.make_context(name, rest)


def test_systemd_unit_starts_a_server_with_tokens() -> None:
    program, *arguments = shlex.split(_unit()["Service"]["ExecStart"])
    assert program.endswith("/shiftwork")
    assert _accepts(arguments).params["tokens"]


def test_systemd_unit_of_the_bridge_starts_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIFTWORK_REDIS_URL", "redis://localhost:6379/0")
    program, group, *arguments = shlex.split(_unit("shiftwork-bridge.service")["Service"]["ExecStart"])
    assert program.endswith("/shiftwork")
    bridge = main.commands[group]
    assert isinstance(bridge, click.Group)
    name, command, rest = bridge.resolve_command(click.Context(bridge), arguments)
    assert command is not None
    assert command.make_context(name, rest).params["role"] == "orchestrator"


def test_image_starts_a_server_with_tokens() -> None:
    assert _docker("ENTRYPOINT") == ["shiftwork"]
    context = _accepts(_docker("CMD"))
    assert (context.params["host"], context.params["tokens"]) == ("0.0.0.0", True)  # noqa: S104  # inside a container


def test_image_health_check_uses_an_existing_route() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    paths = re.findall(r"http://127\.0\.0\.1:8080(/\w+)", text)
    assert paths
    assert set(paths) <= {endpoint.path for endpoint in ENDPOINTS}


def test_image_copies_only_existing_files() -> None:
    for line in (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            assert all((ROOT / name).exists() for name in line.split()[1:-1]), line


@pytest.mark.parametrize("name", ["server-1", "server-2"])
def test_compose_servers_share_one_postgresql(name: str) -> None:
    service = _compose()["services"][name]
    assert service["environment"]["SHIFTWORK_STORE"].startswith("postgresql://")
    assert service["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
