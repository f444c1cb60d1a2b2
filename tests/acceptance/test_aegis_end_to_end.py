"""The eleven end-to-end tests of the Aegis document, a real daemon that is killed, and the page about the document."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.aegis import ISSUE, RUNTIME, WORKSPACE, Aegis, served
from tests.server.running import Reply

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "documents" / "aegis.md"
PATIENCE_SEC = 60


@pytest.fixture
async def aegis(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Aegis]:
    async with served(store_url, monkeypatch) as server:
        yield server


@pytest.mark.requirement("A-106", "A-107", "A-108", "A-109")
async def test_1_to_4_task_is_created_claimed_started_completed_with_events(aegis: Aegis) -> None:
    task = await aegis.create()
    assert (await aegis.get(task))["status"] == "queued"
    assert (await aegis.claim())["id"] == task["id"]
    assert (await aegis.get(task))["status"] == "dispatched"
    await aegis.report(task, "start")
    assert (await aegis.get(task))["status"] == "running"
    await aegis.report(task, "complete", output="done")
    assert (await aegis.get(task))["status"] == "completed"
    assert await aegis.told(task) == ["task:queued", "task:dispatch", "task:running", "task:completed"]


@pytest.mark.requirement("A-043", "A-056", "A-110")
async def test_5_retryable_failure_creates_a_retry_task(aegis: Aegis) -> None:
    task = await aegis.running()
    await aegis.report(task, "fail", failure_reason="timeout")
    failed, retry = await aegis.listed()
    assert (failed["id"], failed["status"]) == (task["id"], "failed")
    assert (retry["status"], retry["attempt"], retry["parent_task_id"]) == ("queued", 2, task["id"])
    assert await aegis.told(task) == ["task:queued", "task:dispatch", "task:running", "task:failed"]
    assert await aegis.told(retry) == ["task:queued"]


@pytest.mark.requirement("A-111")
async def test_6_non_retryable_failure_creates_no_retry(aegis: Aegis) -> None:
    await aegis.report(await aegis.running(), "fail", failure_reason="agent_error")
    assert await aegis.statuses() == ["failed"]
    assert await aegis.claim() is None


@pytest.mark.requirement("A-112")
async def test_7_task_stays_failed_after_the_last_attempt(aegis: Aegis) -> None:
    await aegis.create()
    for _ in range(2):
        task = await aegis.claim()
        await aegis.report(task, "start")
        await aegis.report(task, "fail", failure_reason="timeout")
    await aegis.pass_time(86_400)
    assert await aegis.statuses() == ["failed", "failed"]
    assert await aegis.claim() is None


@pytest.mark.requirement("A-113")
async def test_8_manual_rerun_is_a_new_task_with_a_fresh_session(aegis: Aegis) -> None:
    task = await aegis.running()
    await aegis.report(task, "session", session_id="sess-1", work_dir="/srv/1")
    await aegis.report(task, "complete")
    rerun = await aegis.ask(f"POST /api/issues/{ISSUE}/rerun")
    assert (rerun["id"] != task["id"], rerun["status"], rerun["session_id"]) == (True, "queued", None)


@pytest.mark.requirement("A-114")
async def test_9_orphans_are_failed_and_retried(aegis: Aegis) -> None:
    await aegis.dispatched()
    await aegis.running()
    await aegis.ask(f"POST /api/runtime/{RUNTIME}/orphans")
    assert await aegis.statuses() == ["failed", "failed", "queued", "queued"]


@pytest.mark.requirement("A-115")
async def test_10_timeout_moves_a_task_to_failed(aegis: Aegis) -> None:
    never_started, runs_on = await aegis.dispatched(), await aegis.running()
    await aegis.pass_time(300, RUNTIME)
    assert (await aegis.get(never_started))["status"] == "failed"
    assert (await aegis.get(runs_on))["status"] == "running"
    await aegis.pass_time(8_700, RUNTIME)
    assert (await aegis.get(runs_on))["status"] == "failed"


@pytest.mark.requirement("A-116")
async def test_11_running_task_is_cancelled(aegis: Aegis) -> None:
    task = await aegis.running()
    await aegis.ask(f"POST /api/tasks/{task['id']}/cancel")
    assert (await aegis.get(task))["status"] == "cancelled"
    late = await aegis.call(f"POST /api/tasks/{task['id']}/complete", {"output": "too late"})
    assert (late.status, late.code) == (409, "lease_lost")
    assert (await aegis.get(task))["output"] is None
    assert (await aegis.told(task))[-1] == "task:cancelled"


async def test_token_sets_the_workspace_and_is_limited_to_its_daemon(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(store_url, monkeypatch, tokens=True) as aegis:
        queue = aegis.api.state.queue.in_workspace(WORKSPACE)
        user = (await queue.tokens.create("user", ["read", "submit", "operate"])).secret
        daemons = [(await queue.tokens.create(f"daemon-{n}", ["work"])).secret for n in (1, 2)]

        async def call(token: str, method: str, path: str, body: Any = None) -> Reply:
            headers = {"Authorization": f"Bearer {token}"}
            return await aegis.api.call(method, path, body, headers=headers)

        made = await call(user, "POST", "/api/tasks", {"workspace_id": WORKSPACE, "agent_id": "coder"})
        task = f"/api/tasks/{made.json['id']}"
        assert (await call(daemons[0], "POST", "/api/tasks/claim", {"runtime_id": RUNTIME})).status == 200
        assert (await call(daemons[0], "POST", f"{task}/start")).status == 200
        stolen = await call(daemons[1], "POST", f"{task}/complete", {"runtime_id": RUNTIME})
        assert (stolen.status, stolen.code) == (403, "not_your_claim")
        assert (await call(daemons[0], "POST", f"{task}/complete", {"output": "done"})).status == 200
        assert (await call(user, "GET", task)).json["output"] == "done"
        other = await call(user, "POST", "/api/tasks", {"workspace_id": "elsewhere", "agent_id": "coder"})
        assert (other.status, other.json["where"]) == (404, "workspace_id")
        assert (await aegis.api.call("GET", task)).status == 401


class Daemon:
    """The reference daemon as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def says(self, word: str) -> list[str]:
        """Return its next line, which must begin with this word."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_SEC):
            first, *rest = (await self.process.stdout.readline()).decode().split() or ["nothing"]
        assert first == word
        return rest

    async def tell(self, line: str) -> None:
        """Tell its tool what to do next."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        await self.process.stdin.drain()

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def started(aegis: Aegis) -> AsyncIterator[Daemon]:
    server = aegis.api.url.removeprefix("http://")
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, str(HERE / "daemon.py"), server, RUNTIME],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    daemon = Daemon(process)
    try:
        yield daemon
    finally:
        if process.returncode is None:
            await daemon.kill()


@pytest.mark.requirement("A-001", "A-079", "A-085", "A-086", "A-100", "A-101")
async def test_restarted_daemon_resumes_its_session_after_a_kill(aegis: Aegis) -> None:
    task = await aegis.create()
    async with started(aegis) as daemon:
        assert await daemon.says("recovered") == []
        task_id, session = await daemon.says("pinned")
        pinned = await aegis.get(task)
        assert (task_id, pinned["status"]) == (task["id"], "running")
        assert (pinned["session_id"], pinned["work_dir"]) == (session, f"/work/{session}")
        assert (await aegis.told(task))[-1] == "task:message"  # the session was pinned after the first
        await daemon.kill()
    assert (await aegis.get(task))["status"] == "running"
    async with started(aegis) as daemon:
        assert await daemon.says("recovered") == [task["id"]]
        retry, resumed = await daemon.says("pinned")
        assert resumed == session
        await daemon.tell("done mended")
        assert await daemon.says("ended") == [retry]
    failed, done = await aegis.listed()
    assert (failed["id"], failed["status"], failed["failure_reason"]) == (task["id"], "failed", "runtime_offline")
    assert (done["id"], done["status"], done["output"]) == (retry, "completed", "mended")
    assert (done["parent_task_id"], done["session_id"]) == (task["id"], session)


async def test_daemon_reports_its_work_and_stops_on_cancel(aegis: Aegis) -> None:
    async with started(aegis) as daemon:
        assert await daemon.says("recovered") == []
        task = await aegis.create()
        assert (await daemon.says("pinned"))[0] == task["id"]
        for word in ("call grep", "progress 3"):
            await daemon.tell(word)
            await daemon.says("did")
        assert (await aegis.get(task))["progress"] == {"done": 3}
        await daemon.tell("error quota exceeded")
        await daemon.says("ended")
        failed = await aegis.get(task)
        assert (failed["status"], failed["error"]) == ("failed", "quota exceeded")
        assert (await aegis.told(task)).count("task:message") == 3
        cancelled = await aegis.create()
        await daemon.says("pinned")
        await aegis.report(cancelled, "cancel")
        await daemon.tell("progress 1")
        assert await daemon.says("stopped") == [cancelled["id"]]
    assert await aegis.statuses() == ["failed", "cancelled"]


_BLOCK = re.compile(r"```(sh|json)\n(.*?)```", re.DOTALL)
_KEPT = re.compile(r"(\w+)=\$\((curl .*) \| jq -r \.(\S+)\)")


def commands(block: str) -> list[tuple[str | None, str, str]]:
    """The curl commands of a block: the variable that keeps part of the answer, the command, and which part."""
    lines = block.replace("\\\n", " ").splitlines()
    kept = [(line, _KEPT.fullmatch(line)) for line in lines if "curl " in line]
    return [(found[1], found[2], found[3]) if found else (None, line, "") for line, found in kept]


async def curl(aegis: Aegis, command: str, variables: dict[str, str]) -> Any:
    """Send the request as curl would; with a body, as POST."""
    for name, value in variables.items():
        command = command.replace(f"${name}", value)
    _, *words = shlex.split(command)
    body = words[words.index("-d") + 1] if "-d" in words else None
    method = "POST" if body is not None or "POST" in words else "GET"
    (address,) = [word for word in words if word.startswith("localhost:8080")]
    reply = await aegis.api.call(method, address.removeprefix("localhost:8080"), data=body)
    assert reply.status in {200, 201}, (command, reply)
    return reply.json


def missing(expected: Any, actual: Any, where: str = "") -> list[str]:
    """Return where an answer differs from the page; `…` matches anything, and further fields are allowed."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return [found for key, value in expected.items() for found in missing(value, actual.get(key), f"{where}.{key}")]
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return [found for pair in zip(expected, actual, strict=True) for found in missing(*pair, f"{where}[]")]
    return [] if expected in ("…", actual) else [f"{where}: {actual!r} is not {expected!r}"]


async def test_page_about_the_document_is_true(aegis: Aegis) -> None:
    await aegis.api.call("PATCH", "/api/settings", {"profile": "aegis"})
    variables: dict[str, str] = {}
    answer: Any = None
    shown = 0
    for kind, block in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "json":
            assert missing(json.loads(block), answer) == []
            shown += 1
            continue
        for variable, command, part in commands(block):
            answer = await curl(aegis, command, variables)
            if variable is not None:
                value = answer
                for name in part.split("."):
                    value = value[name]
                variables[variable] = value
    assert shown >= 5
