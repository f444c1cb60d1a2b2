"""`serve --processes N`: several processes answer on one port; one that dies is replaced, and all end together."""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from shiftwork import Client
from shiftwork.model.errors import InputError
from shiftwork.server.options import Options
from shiftwork.server.server_processes import check
from tests.server.processes import start


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


async def until_gone(pids: set[int]) -> None:
    async with asyncio.timeout(60):
        while any(is_alive(pid) for pid in pids):  # noqa: ASYNC110  # other processes
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def answering(url: str, count: int) -> set[str]:
    """Return the processes that answer on new connections, by the prefix of their request ids."""
    found = set()
    for _ in range(count):
        async with aiohttp.ClientSession() as http, http.get(f"{url}/healthz") as answer:
            assert answer.status == 200
            found.add(answer.headers["x-request-id"][:8])
    return found


async def test_processes_share_the_port_and_the_queue(store_url: str) -> None:
    async with await start(store_url, "--processes", "2") as server:
        assert len(await answering(server.url, 60)) == 2
        async with Client.open(server.url) as queue:
            made = await queue.submit_many([{"type": "code"}] * 20)
            claims = await asyncio.gather(*(queue.claim(f"agent-{n}", start=True, wait=20) for n in range(20)))
            await asyncio.gather(*(queue.complete(task.token) for (task,) in claims))
            assert {task.status for task in await queue.batch.get([each.id for each in made])} == {"completed"}
        assert await server.stop() == 0


async def test_killed_process_is_replaced(sqlite_url: str) -> None:
    async with await start(sqlite_url, "--processes", "2") as server:
        before = children(server.process.pid)
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        async with asyncio.timeout(60):
            while len(now := children(server.process.pid) - {killed}) < 2:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.02)
        assert len(now - before) == 1
        assert len(await answering(server.url, 60)) == 2
        assert await server.stop() == 0
        await until_gone(before | now)


async def test_processes_end_when_their_parent_is_killed(sqlite_url: str) -> None:
    async with await start(sqlite_url, "--processes", "2") as server:
        left = children(server.process.pid)
        assert len(left) == 2
        await server.kill()
        await until_gone(left)


async def test_store_that_cannot_be_opened_ends_all_processes() -> None:
    with pytest.raises(RuntimeError, match="ended with 5 before it served"):
        await start("postgresql://127.0.0.1:1/none", "--processes", "2")


def test_movable_clock_is_refused_in_several_processes() -> None:
    with pytest.raises(InputError, match="clock"):
        check(Options(store="sqlite:///x.db", test_clock=True), 2)
