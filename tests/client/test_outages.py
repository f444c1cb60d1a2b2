"""Workers of a server that is killed and restarted, in real processes: nothing is lost or repeated."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.worker.outbox import default_folder
from tests.server.processes import ServerProcess, start
from tests.worker.mills import Mill, done_once, kill_a_child, running_mill, stop, submit
from tests.worker.steps import PATIENCE_SEC, until, until_status, verbs

ROOT = Path(__file__).resolve().parents[2]


class Site:
    """A server at one address that can be killed and restarted."""

    def __init__(self, store: str, server: ServerProcess) -> None:
        self._store = store
        self._server = server
        self.url = server.url

    async def kill(self) -> None:
        await self._server.kill()

    async def start_again(self) -> None:
        self._server = await start(self._store, port=int(self.url.rpartition(":")[2]))

    async def end(self) -> None:
        if self._server.process.returncode is None:
            await self._server.kill()


@pytest.fixture
async def site(store_url: str) -> AsyncIterator[Site]:
    made = Site(store_url, await start(store_url))
    yield made
    await made.end()


@pytest.fixture
async def queue(store_url: str, site: Site) -> AsyncIterator[Queue]:
    """The queue, opened directly on the database."""
    async with Queue.open(store_url) as opened:
        yield opened


@pytest.fixture
def mill(site: Site, tmp_path: Path) -> Iterator[Mill]:
    with running_mill(site.url, tmp_path) as made:
        yield made


@pytest.fixture
def outbox(site: Site) -> Path:
    folder = default_folder(site.url)
    assert folder is not None
    return folder


async def test_server_killed_and_restarted_under_a_worker_loses_nothing(queue: Queue, mill: Mill, site: Site) -> None:
    lone = mill.start(1)
    tasks = await submit(queue, mill, 6)
    await until(lambda: sum(len(mill.holders(task)) for task in tasks) == 2)
    await site.kill()
    await until(lambda: "a heartbeat failed" in mill.log())
    await site.start_again()
    mill.go()
    await until(lambda: done_once(queue, tasks))
    for task in tasks:
        assert await verbs(queue, task) == ["submitted", "claimed", "completed"]
        assert mill.holders(task) == [lone.pid]
        assert (await queue.result(task)).data == lone.pid
    assert await stop(lone) == 0


@asynccontextmanager
async def cut_off(queue: Queue, mill: Mill, site: Site, outbox: Path) -> AsyncIterator[list[str]]:
    """The server is killed while a worker holds two tasks, the handlers finish, and their results are on disk."""
    mill.start(1)
    tasks = await submit(queue, mill, 2)
    for task in tasks:
        await mill.holder(task)
    await site.kill()
    mill.go()
    await until(lambda: len(list(outbox.glob("*.json"))) == 2)
    yield tasks


@pytest.mark.requirement("C-262")
async def test_results_finished_while_the_server_was_down_are_submitted(
    queue: Queue, mill: Mill, site: Site, outbox: Path
) -> None:
    async with cut_off(queue, mill, site, outbox) as tasks:
        await site.start_again()
        await until(lambda: done_once(queue, tasks))
        await until(lambda: not list(outbox.iterdir()))
        for task in tasks:
            assert await verbs(queue, task) == ["submitted", "claimed", "completed"]
            assert (await queue.result(task)).data == mill.holders(task)[0]


async def test_restarted_worker_submits_results_of_its_predecessor(
    queue: Queue, mill: Mill, site: Site, outbox: Path
) -> None:
    async with cut_off(queue, mill, site, outbox) as tasks:
        (killed,) = {pid for task in tasks for pid in mill.holders(task)}
        mill.end()
        await site.start_again()
        following = mill.start(1, until_idle=True)
        assert await asyncio.to_thread(following.wait, PATIENCE_SEC) == 0
        for task in tasks:
            assert await verbs(queue, task) == ["submitted", "claimed", "completed"]
            assert (await queue.result(task)).data == killed
        await until(lambda: not list(outbox.iterdir()))


async def test_killed_child_of_a_fleet_is_replaced_and_its_tasks_reassigned(queue: Queue, mill: Mill) -> None:
    fleet = mill.start(2)
    await kill_a_child(queue, mill)
    assert await stop(fleet) == 0
    assert {(agent.id, agent.status) for agent in await queue.agents.list()} == {
        ("mill-1", "offline"),
        ("mill-2", "offline"),
    }


async def test_work_command_passes_its_token_to_all_processes(store_url: str, tmp_path: Path) -> None:
    """The fleet's parent, its children and their heartbeats all need it."""
    async with Queue.open(store_url) as queue, await start(store_url, "--tokens") as server:
        with running_mill(server.url, tmp_path) as mill:
            (task,) = await submit(queue, mill)
            mill.go()
            secret = (await queue.tokens.create("mill", ["work"])).secret
            command = [sys.executable, "-m", "shiftwork", "work", "tests.worker.mill:worker", "--until-idle"]
            known = {**os.environ, "SHIFTWORK_STORE": server.url}
            shut_out = await asyncio.to_thread(
                subprocess.run, command, cwd=ROOT, env=known, capture_output=True, text=True, check=False
            )
            assert (shut_out.returncode, shut_out.stderr) == (6, f"{NO_TOKEN}\n")
            let_in = await asyncio.to_thread(
                subprocess.run, [*command, "--processes", "2", "--token", secret], cwd=ROOT, env=known, check=False
            )
            assert let_in.returncode == 0
            await until_status(queue, task, "completed")


NO_TOKEN = (
    "error: this server needs a token. Send `Authorization: Bearer <token>`; `shiftwork tokens create` makes one."
)
