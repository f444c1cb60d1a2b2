"""The protocol's own clients in TypeScript: the Inspector shows our errors, and the tasks package follows our tasks."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.typescript import check_node
from tests.services.programs import FETCHED, fetching
from tools import typescript

PROGRAMS = Path(__file__).parent / "node"
PATIENCE_SEC = 90


@pytest.fixture(scope="module")
def node_folder() -> Path:
    """A folder with the clients, fetched once for each content of package.json."""
    check_node()
    wanted = PROGRAMS / "package.json"
    folder = FETCHED / "npm" / hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]
    with fetching(folder) as fresh:
        if fresh is not None:
            shutil.copy2(wanted, fresh)
            typescript.install(fresh)
    return folder


def server_on(store_url: str) -> list[str]:
    return [sys.executable, "-m", "shiftwork", "mcp", "--store", store_url]


def inspected(folder: Path, store_url: str, *options: str) -> dict[str, Any]:
    """What the Inspector prints of one request."""
    line = ["npx", "--no-install", "mcp-inspector", "--cli", *server_on(store_url), *options]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_SEC)
    found: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout.lstrip())[0]
    return found


def test_inspector_shows_the_real_error(node_folder: Path, sqlite_url: str) -> None:
    call = ("--method", "tools/call", "--tool-name", "get")
    unknown = inspected(node_folder, sqlite_url, *call, "--tool-arg", "task_id=nope")
    assert unknown["isError"] is True
    assert "there is no task 'nope'" in unknown["content"][0]["text"]
    assert unknown["_meta"]["shiftwork/error"]["code"] == "not_found"
    assert "structuredContent" not in unknown
    missing = inspected(node_folder, sqlite_url, *call)
    assert "missing required field `task_id`" in missing["content"][0]["text"]


def test_inspector_accepts_the_schemas_of_all_tools(node_folder: Path, sqlite_url: str) -> None:
    line = [
        "npx",
        "--no-install",
        "mcp-inspector",
        "--cli",
        *server_on(sqlite_url),
        "--strict",
        "--method",
        "tools/list",
    ]
    done = subprocess.run(line, cwd=node_folder, capture_output=True, text=True, check=False, timeout=PATIENCE_SEC)
    assert done.returncode == 0, done.stderr
    assert "0 errors" in done.stderr


def test_typescript_tasks_client_follows_a_task(node_folder: Path, sqlite_url: str) -> None:
    program = node_folder / "tasks.mjs"
    shutil.copy2(PROGRAMS / "tasks.mjs", program)  # it finds its packages from where it is
    line = ["node", str(program), *server_on(sqlite_url)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE_SEC)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (task,) = found["result"]["structuredContent"]["tasks"]
    assert task == {"task_id": found["handle"]["taskId"], "status": "completed", "result": {"text": "done"}}
