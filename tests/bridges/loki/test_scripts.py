"""The documented scripts, agents and the bridge as separate processes, and the state after one is killed."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shiftwork import Queue
from shiftwork.compat.bridges.loki.bridge import Bridge
from shiftwork.model.task import Task
from tests.bridges.loki.dot_loki import QUEUES, DotLoki, bridged, enqueue, plain, start_bridge
from tests.conformance.steps import REPORT

TASKS = 40


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Queue]:
    async with Queue.open(url) as queue:
        await queue.settings.use_profile("loki")
        yield queue


async def start_agent(url: str, name: str) -> Process:
    program = [sys.executable, "-m", "tests.bridges.loki.claimer", url, name]
    process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


class Fleet:
    """Which process claimed which task."""

    def __init__(self, folder: DotLoki) -> None:
        self.claims: list[tuple[str, str]] = []
        self.reads = 0
        self._folder = folder
        self._script_has_one = asyncio.Event()

    async def script(self, name: str) -> None:
        """Runs the document's script until everything is claimed."""
        while len(self.claims) < TASKS:
            if task_id := await self._folder.claim(name):
                self.claims.append((task_id, name))
                self._script_has_one.set()

    async def agent(self, process: Process, name: str) -> None:
        """Start after a script: an agent is a hundred times faster and could finish before the first script."""
        assert process.stdin is not None
        assert process.stdout is not None
        await self._script_has_one.wait()
        process.stdin.write(b"go\n")
        async for line in process.stdout:
            self.claims.append((plain(line.decode().strip()), name))
        assert await process.wait() == 0

    async def reader(self) -> None:
        """Read without the lock, and check that no file is incomplete."""
        while len(self.claims) < TASKS:
            for queue in QUEUES:
                await asyncio.to_thread(self._folder.tasks, queue)
            self.reads += 1


@pytest.mark.requirement("L-039", "L-056", "L-060")
async def test_scripts_and_agents_competing_claim_each_task_once(store_url: str, folder: DotLoki) -> None:
    async with opened(store_url) as queue:
        made = [await enqueue(queue, number) for number in range(TASKS)]
        bridge = await start_bridge(store_url, folder)
        agents = [await start_agent(store_url, f"agent-{n}") for n in range(2)]
        fleet = Fleet(folder)
        work = [fleet.agent(process, f"agent-{n}") for n, process in enumerate(agents)]
        scripts = [fleet.script(f"script-{n}") for n in range(2)]
        killing = asyncio.ensure_future(_kill_now_and_then(store_url, folder, fleet, bridge))
        await asyncio.gather(*work, *scripts, fleet.reader())
        bridge = await killing
        assert sorted(task_id for task_id, _ in fleet.claims) == sorted(plain(task_id) for task_id in made)
        assert {name.partition("-")[0] for _, name in fleet.claims} == {"agent", "script"}
        await _until_shown(folder, "in-progress", TASKS)
        bridge.terminate()
        assert await bridge.wait() == 0
        assert {plain(t.id): t.claim.agent_id for t in (await queue.tasks.list()).tasks} == dict(fleet.claims)
        assert {task["id"]: task["claimedBy"] for task in folder.tasks("in-progress")} == dict(fleet.claims)
        assert (folder.ids("pending"), fleet.reads > 0) == ([], True)


async def _kill_now_and_then(url: str, folder: DotLoki, fleet: Fleet, bridge: Process) -> Process:
    """Kill the bridge after a few claims and start another, repeatedly; return the last one."""
    for after in (5, 12, 20):
        while len(fleet.claims) < after:  # noqa: ASYNC110 -- claims come from other processes
            await asyncio.sleep(0.001)
        bridge.kill()
        assert await bridge.wait() == -signal.SIGKILL
        bridge = await start_bridge(url, folder)
    return bridge


async def _until_shown(folder: DotLoki, queue: str, count: int) -> None:
    async with asyncio.timeout(30):
        while len(folder.ids(queue)) < count:  # noqa: ASYNC110 -- files have no event for it
            await asyncio.sleep(0.01)


async def die(url: str, folder: DotLoki, what: str, number: int) -> None:
    program = [sys.executable, "-m", "tests.bridges.loki.dying", url, str(folder.path), what, str(number)]
    process = await asyncio.create_subprocess_exec(*program)
    assert await process.wait() == -signal.SIGKILL


async def check_whole(queue: Queue, folder: DotLoki) -> None:
    """The next bridge brings every task into the file in which it belongs, and into no other."""
    for name in QUEUES:
        if folder.file(name).exists():
            json.loads(folder.file(name).read_text())
    await Bridge(queue, folder.path, 10, two_way=True).run_until_stable()
    counts = Counter({"ready": "pending", "running": "in-progress"}.get(t.status, t.status) for t in await _all(queue))
    assert {name: len(folder.ids(name)) for name in QUEUES} == {name: counts[name] for name in QUEUES}


async def _all(queue: Queue) -> list[Task]:
    return list((await queue.tasks.list()).tasks)


@pytest.mark.requirement("L-060")
@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_bridge_killed_while_writing_leaves_whole_files(store_url: str, folder: DotLoki, number: int) -> None:
    async with opened(store_url) as queue:
        bridge = await bridged(queue, folder, two_way=True)
        first, second, third, _ = [await enqueue(queue, n) for n in range(4)]
        await bridge.run_until_stable()
        assert await folder.claim("script-1") == plain(first)
        assert await folder.claim("script-2") == plain(second)
        await queue.cancel(third)
        folder.move(first, "completed", result={"status": "success", "output": "built", "decisionReport": REPORT})
        await die(store_url, folder, "bridge", number)
        await check_whole(queue, folder)
        states = [(await queue.get(task_id)).status for task_id in (first, second, third)]
        assert states == ["completed", "running", "cancelled"]
        assert [len(await queue.tasks.attempts(task_id)) for task_id in (first, second)] == [1, 0]


async def test_claimer_killed_before_its_claim_leaves_nothing_claimed(store_url: str, folder: DotLoki) -> None:
    async with opened(store_url) as queue:
        bridge = await bridged(queue, folder, two_way=True)
        task_id = await enqueue(queue)
        await bridge.run_until_stable()
        await die(store_url, folder, "claim", 1)
        assert (await queue.get(task_id)).status == "ready"
        assert await folder.claim("script-1") == plain(task_id)


async def test_task_of_a_killed_claimer_is_not_claimable_by_scripts(store_url: str, folder: DotLoki) -> None:
    async with opened(store_url) as queue:
        bridge = await bridged(queue, folder, two_way=True)
        first, second = await enqueue(queue, 1), await enqueue(queue, 2)
        await bridge.run_until_stable()
        await die(store_url, folder, "claim", 2)
        assert (await queue.get(first)).claim.agent_id == "doomed"
        assert await folder.claim("script-1") is None
        await bridge.run_until_stable()
        assert await folder.claim("script-1") == plain(second)
        assert folder.where(first) == ["in-progress"]
