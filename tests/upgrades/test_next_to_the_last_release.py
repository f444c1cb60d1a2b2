"""Servers, producers and workers of the last release continue while a new version migrates the queue and joins them."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from shiftwork import Queue
from shiftwork.maintenance import loop
from tests.races.fleet import stranded
from tests.server import processes
from tests.services import Databases
from tests.upgrades import released

AGENT = Path(__file__).with_name("agent.py")
TURN = 30


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released.unpack(tmp_path_factory.mktemp("released"))


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path, postgres: Databases) -> Iterator[str]:
    """The address of an empty store."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/queue.db"
        return
    name = postgres.create_database()
    yield postgres.dsn(name)
    postgres.drop_database(name)


async def run(package: Path | None, *words: str) -> tuple[int, str]:
    """Run a command of either version; return its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "shiftwork", *words],
        env=released.environment(package),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


class Fleet:
    """Processes of both versions, and what was acknowledged to each."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.submitted: list[str] = []
        self.completed: dict[str, list[str]] = {}
        self._steps = asyncio.Condition()

    @asynccontextmanager
    async def running(self, name: str, package: Path | None) -> AsyncIterator[None]:
        """A producer, a worker and a server with a client of one version, until the block ends."""
        async with self._agent("produce", name, package), self._agent("work", name, package):
            serving = await self._serve(package)
            client = asyncio.create_task(self._ask(serving.url))
            try:
                yield
            finally:
                client.cancel()
                await serving.stop()

    async def _serve(self, package: Path | None) -> processes.ServerProcess:
        if package is None:
            return await processes.start(self._url)
        return await processes.start(self._url, PYTHONPATH=str(package))

    @asynccontextmanager
    async def _agent(self, role: str, name: str, package: Path | None) -> AsyncIterator[None]:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, str(AGENT), self._url, role, name],
            env=released.environment(package),
            stdout=asyncio.subprocess.PIPE,
        )
        kept = self.submitted if role == "produce" else self.completed.setdefault(name, [])
        reading = asyncio.create_task(self._read(process, kept))
        try:
            yield
            process.terminate()
            await reading
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _read(self, process: asyncio.subprocess.Process, kept: list[str]) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if word := line.decode().strip():
                kept.append(word)
                async with self._steps:
                    self._steps.notify_all()

    async def _ask(self, server: str) -> None:
        async with aiohttp.ClientSession() as http:
            while True:
                async with http.post(f"{server}/api/tasks", json={"type": "code"}) as answer:
                    if answer.status == 201:
                        self.submitted.append((await answer.json())["id"])
                await asyncio.sleep(0.05)

    async def until(self, *names: str) -> None:
        """Wait until each of these workers has completed this many more."""
        enough = {name: len(self.completed.get(name, ())) + TURN for name in names}

        def reached() -> bool:
            return all(len(self.completed.get(name, ())) >= least for name, least in enough.items())

        async with self._steps:
            await asyncio.wait_for(self._steps.wait_for(reached), 90)


@pytest.mark.timeout(300)
async def test_last_release_works_next_to_this_version_until_the_contract(empty_url: str, old: Path) -> None:
    fleet = Fleet(empty_url)
    assert (await run(old, "--store", empty_url, "migrate"))[0] == 0
    async with fleet.running("old", old):
        await fleet.until("old")
        code, said = await run(None, "--store", empty_url, "migrate")
        assert code == 0, said
        async with fleet.running("new", None):
            await fleet.until("old", "new")
    code, said = await run(None, "--store", empty_url, "migrate", "--contract")
    assert code == 0, said
    async with fleet.running("new", None):
        await fleet.until("new")
    assert "store_newer" in (await run(old, "--store", empty_url, "--json", "status"))[1]
    await check(empty_url, fleet)


async def check(url: str, fleet: Fleet) -> None:
    """Nothing acknowledged is lost, and every event was counted by those who read the log, whichever version did."""
    async with Queue.open(url) as queue:
        await queue.agents.register(id="last", max_concurrent_tasks=None)
        while taken := await queue.claim("last", 500, start=True):
            await queue.batch.complete([{"token": each.token} for each in taken])
        seen: Counter[tuple[str, str | None]] = Counter()
        after = 0
        while (news := await queue.events(after)).events:
            seen.update((event.verb, event.task_id) for event in news.events)
            after = news.next
        ended = {task for verb, task in seen if verb == "completed"}
        assert set(fleet.submitted) <= ended
        assert {task for done in fleet.completed.values() for task in done} <= ended
        assert {times for (verb, _), times in seen.items() if verb in {"submitted", "completed"}} == {1}
        assert (await queue.status()).counts == {"completed": len(ended)}
        await loop.run_once(queue.engine, force=True)
        assert (await queue.metrics.read()).value("tasks_completed_total", type="code") == len(ended)
        assert await stranded(queue) == []
