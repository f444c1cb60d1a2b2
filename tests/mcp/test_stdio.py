"""`shiftwork mcp` as clients start it: a process that uses standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from shiftwork import Queue
from shiftwork.maintenance.loop import run_forever
from tests.client.serving import served
from tests.mcp.scripted import PAGE, work_to_the_end
from tests.mcp.talking import MODES, PATIENCE_SEC, command, over_stdio

ORDER = ["ask", "ask", "research", "write", "draw", "publish"]


async def in_haste(queue: Queue) -> None:
    """Settings under which the task of a dead agent returns within two seconds, and retries are immediate."""
    settings: dict[str, Any] = {"heartbeat_interval_sec": 0.2, "heartbeat_timeout_sec": 1.5}
    settings |= {"maintenance.reclaim_sec": 0.2, "maintenance.retry_promoter_sec": 0.2}
    settings |= {"retry.initial_delay_sec": 0.1, "retry.max_delay_sec": 0.1}
    for key, value in settings.items():
        await queue.settings.set(key, value)


@pytest.mark.parametrize("mode", MODES)
async def test_scripted_agent_completes_a_dag(store_url: str, mode: str) -> None:
    async with Queue.open(store_url) as queue:
        await in_haste(queue)
        async with over_stdio(store_url, "--agent", "crab", mode=mode) as agent:
            made = await agent("submit", title="Page", tasks=PAGE)
            done = await work_to_the_end(agent)
            while (await queue.dags.get(made["dag_id"])).status != "completed":
                task = await agent.take(wait_sec=20)  # the attempt that failed
                await agent("complete", token=task["token"], data="done")
                done.append(task["type"])
        assert sorted(done) == sorted(ORDER)
        assert done[:3] == ["ask", "ask", "research"]
        text, picture = [await queue.result(task["task_id"]) for task in made["tasks"][1:3]]
        assert text.data == {"words": ["Ada", "Grace"]}
        assert picture.data == {"colour": "blue"}


async def test_mcp_works_through_a_server_with_a_token(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{tmp_path}/q.db"
    async with Queue.open(store) as queue:
        secret = (await queue.tokens.create("crab", ["work", "submit"])).secret
    with served(store, tokens=True) as server:
        async with over_stdio(server.url, SHIFTWORK_TOKEN=secret) as agent:
            (made,) = (await agent("submit", tasks=[{"type": "code"}]))["tasks"]
            task = await agent.take()
            assert task["task_id"] == made["task_id"]
            await agent("heartbeat", token=task["token"])
            refused = await agent.refusal("cancel", task_id=made["task_id"])
            assert (refused["code"], refused["needs"]) == ("forbidden", "operate")
            await agent("complete", token=task["token"])
    assert secret not in capfd.readouterr().err


async def taken_over(queue: Queue) -> Any:
    """Return the task as another agent claims it after its lease has expired."""
    maintenance = asyncio.create_task(run_forever(queue.engine))
    try:
        (claim,) = await queue.claim("other", wait=25)
    finally:
        maintenance.cancel()
    return claim


async def test_task_of_a_killed_client_is_reclaimed(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        await in_haste(queue)
        made = await queue.submit(type="code")
        client = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "tests.mcp.driver", store_url], stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout is not None
        async with asyncio.timeout(PATIENCE_SEC):
            token = (await client.stdout.readline()).decode().strip()
        assert token == f"{made.id}.1"
        client.kill()
        await client.wait()
        claim = await taken_over(queue)
        assert (claim.id, claim.fence) == (made.id, 2)


async def test_task_of_a_killed_server_is_reclaimed_and_late_result_refused(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        await in_haste(queue)
        made = await queue.submit(type="code")
        async with over_stdio(store_url) as agent:
            token = (await agent.take())["token"]
            owner = (await queue.get(made.id)).claim.agent_id or ""
            os.kill(int(owner.removeprefix("mcp-")), signal.SIGKILL)  # it is named after its process
            with pytest.raises(MCPError, match="Connection closed"):
                await agent("heartbeat", token=token)
        claim = await taken_over(queue)
        assert (claim.id, claim.fence) == (made.id, 2)
        async with over_stdio(store_url) as agent:
            assert (await agent.refusal("complete", token=token, text="late"))["code"] == "lease_lost"


def speak(store: str, *lines: str) -> subprocess.CompletedProcess[str]:
    """Send these lines to a server and return its answers."""
    started = command(store)
    return subprocess.run(
        [started.command, *started.args],
        input="".join(line + "\n" for line in lines),
        env={**os.environ, **(started.env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SEC,
        check=False,
    )


def request(number: int, method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


HELLO = request(
    1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "test", "version": "1"}
)


def test_standard_output_contains_only_the_protocol(tmp_path: Path) -> None:
    ready = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
    stale = request(2, "tools/call", name="complete", arguments={"token": "task_01M7HKPP75E028Z0JYW47T8709.1"})
    done = speak(f"sqlite:///{tmp_path}/q.db", HELLO, ready, "no json at all", stale)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    by_id = {answer.get("id"): answer for answer in answers}
    assert by_id[1]["result"]["serverInfo"]["name"] == "shiftwork"
    assert done.returncode == 0


def test_closed_input_ends_the_server(tmp_path: Path) -> None:
    done = speak(f"sqlite:///{tmp_path}/q.db")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_the_server_while_its_client_is_silent(tmp_path: Path, word: signal.Signals) -> None:
    started = command(f"sqlite:///{tmp_path}/q.db")
    pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(started.command, *started.args, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write((HELLO + "\n").encode())
    async with asyncio.timeout(PATIENCE_SEC):
        assert await process.stdout.readline()
        process.send_signal(word)
        assert await process.wait() == -word


def test_unreachable_store_is_reported_on_standard_error() -> None:
    done = speak("postgresql://127.0.0.1:1/none")
    assert (done.returncode, done.stdout) == (5, "")
    assert "cannot be reached" in done.stderr


def test_missing_sdk_is_reported_with_install_command() -> None:
    program = "import sys; sys.modules['mcp'] = None; from shiftwork.cli import main; main(['mcp'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'shiftwork[mcp]'" in done.stderr


def test_other_commands_do_not_import_the_sdk() -> None:
    program = "import sys, shiftwork.cli.root; sys.exit(any(name.split('.')[0] == 'mcp' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
