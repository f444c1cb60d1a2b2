"""The page about MCP matches the server, and its example runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from shiftwork.cli.mcp import mcp
from shiftwork.mcp.mcp_server import KEEP_SEC, MAX_CALL_SEC
from shiftwork.mcp.resources import FIXED, TASKS
from shiftwork.mcp.tool import MAX_WAIT_SEC
from shiftwork.mcp.tool_calls import TOOLS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/howto/mcp.md").read_text(encoding="utf-8")


def configurations() -> list[dict[str, Any]]:
    """Every server that the page configures for a client."""
    found: list[dict[str, Any]] = []
    for kind, text in re.findall(r"```(json|toml)\n(.*?)```", PAGE, re.DOTALL):
        read: dict[str, Any] = json.loads(text) if kind == "json" else tomllib.loads(text)
        (servers,) = [read[key] for key in ("mcpServers", "servers", "mcp_servers") if key in read]
        found.append(servers["shiftwork"])
    return found


def test_page_describes_both_transports_for_every_client() -> None:
    found = configurations()
    assert (sum("command" in each for each in found), sum("url" in each for each in found)) == (3, 4)
    assert all(name in PAGE for name in ("Claude Code", "Claude Desktop", "Cursor", "VS Code", "Codex"))


@pytest.mark.parametrize("server", [each for each in configurations() if "command" in each])
def test_configured_command_line_is_valid(server: dict[str, Any]) -> None:
    name, *line = server["args"]
    assert (server["command"], name) == ("shiftwork", mcp.name)
    with click.Context(mcp) as context:
        mcp.parse_args(context, list(line))
    assert server["env"]["SHIFTWORK_STORE"].startswith("sqlite:////")


@pytest.mark.parametrize("server", [each for each in configurations() if "url" in each])
def test_configured_url_is_the_served_one(server: dict[str, Any]) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:8090/mcp\?agent=[\w-]+", server["url"])
    assert "SHIFTWORK_TOKEN" in json.dumps(server) or "${input:shiftwork-token}" in json.dumps(server)


def test_page_lists_all_tools_resources_and_limits() -> None:
    for role in ("worker", "submitter"):
        names = [tool.name for tool in TOOLS.values() if tool.is_for(role)]
        (line,) = re.findall(rf"\| `{role}` \| `(.*)` \|", PAGE)
        assert sorted(line.split(", ")) == sorted(names)
    assert all(f"`{each.uri}`" in PAGE for each in (*FIXED, TASKS))
    assert f"{MAX_CALL_SEC:g} seconds; `claim` waits up to {MAX_WAIT_SEC:g}" in PAGE
    assert f"`--keep` ({KEEP_SEC / 60:g} minutes)" in PAGE


def test_example_agents_run_to_the_end(store_url: str, tmp_path: Path) -> None:
    line = [sys.executable, str(ROOT / "examples/mcp_agents.py"), store_url]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "research: completed ",
        "write: completed The first program was written by Ada Lovelace.",
    ]
