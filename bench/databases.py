"""`python -m bench.databases`: throughput with many databases, and the move of a 100,000-task workspace under load."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypeVar

from bench.stores import SERVER
from shiftwork import Queue
from shiftwork.databases import move
from shiftwork.model.errors import StoreError
from tests.services import Postgres

T = TypeVar("T")
WORKSPACES = 4
BATCH = 250


def write_map(servers: list[Postgres], folder: Path) -> str:
    """Write a map with one database on each server."""
    lines = ['default = "d0"', "[databases]"]
    lines += [f'd{number} = "{server.dsn(server.create_database())}"' for number, server in enumerate(servers)]
    file = folder / "map.toml"
    file.write_text("\n".join(lines))
    return f"shiftwork+map:{file}"


async def drain(url: str, workspace: str, tasks: int) -> float:
    """Submit, claim and complete this many tasks in batches; return tasks a second."""
    async with Queue.open(url, workspace=workspace) as queue:
        await queue.agents.register({"id": "worker", "max_concurrent_tasks": BATCH})
        began = time.perf_counter()
        for _ in range(0, tasks, BATCH):
            await queue.submit_many([{"type": "build", "payload": {"n": n}} for n in range(BATCH)])
        done = 0
        while done < tasks:
            claims = await queue.claim("worker", 100, start=True)
            await queue.batch.complete([{"token": claim.token, "data": {}} for claim in claims])
            done += len(claims)
        return tasks / (time.perf_counter() - began)


async def spread(databases: int, tasks: int, folder: Path) -> None:
    """Measure four workspaces with one process each, on 1, 2 or 4 servers."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Postgres.start(durable=True, settings=SERVER)) for _ in range(databases)]
        url = write_map(servers, folder)
        async with Queue.open(url) as queue:
            assert queue.routes is not None
            for number in range(WORKSPACES):
                await queue.in_workspace(f"w{number}").submit(type="other")
                if number % databases:
                    await move.move(queue.routes, f"w{number}", f"d{number % databases}")
        plain = await run_processes([queue.routes.map.databases["d0"]], tasks) if databases == 1 else None
        rate = await run_processes([url] * WORKSPACES, tasks)
        print(f"{databases} databases: {rate:.0f} tasks/s by {WORKSPACES} processes", flush=True)
        if plain is not None:
            one = await run_processes([url], tasks)
            print(f"one process: {plain:.0f} tasks/s on the database itself, {one:.0f} by its map", flush=True)


async def run_processes(urls: list[str], tasks: int) -> float:
    began = time.perf_counter()
    running = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.databases", "--drain", url, "--workspace", f"w{number}", "--tasks", str(tasks)
        )
        for number, url in enumerate(urls)
    ]
    for process in running:
        assert await process.wait() == 0
    return len(urls) * tasks / (time.perf_counter() - began)


async def move_under_load(tasks: int, folder: Path) -> None:
    """Move a workspace while others submit, claim and complete in it, and back."""
    with Postgres.start(durable=True, settings=SERVER) as one, Postgres.start(durable=True, settings=SERVER) as two:
        url = write_map([one, two], folder)
        async with Queue.open(url, workspace="moving") as queue:
            for _ in range(0, tasks, BATCH):
                await queue.submit_many([{"type": "old", "payload": {"n": n}} for n in range(BATCH)])
            await queue.agents.register({"id": "first", "max_concurrent_tasks": BATCH})
            for _ in range(tasks // 400):
                claims = await queue.claim("first", 200, start=True, types=["old"])
                await queue.batch.complete([{"token": claim.token, "data": {}} for claim in claims])
            load = Load(url)
            async with load:
                await asyncio.sleep(5)
                for target in ("d1", "d0"):
                    load.slowest = 0.0
                    assert queue.routes is not None
                    moved = await move.move(queue.routes, "moving", target, Steps())
                    await asyncio.sleep(3)
                    print(moved, f"slowest call {load.slowest:.2f} s, {len(load.completed)} completed", flush=True)
            assert sorted(load.completed) == sorted(load.submitted), "a task was lost or done twice"
            print(f"submitted {len(load.submitted)}, completed {len(load.completed)}, refused {load.refused}")
            print((await queue.status(fresh=True)).counts)


class Steps:
    """Prints how long each step took."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def __call__(self, step: str) -> None:
        print(f"{step}: {time.perf_counter() - self._began:.2f} s", flush=True)
        self._began = time.perf_counter()


class Load:
    """One submitter and four agents, about 100 tasks a second."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.submitted: list[str] = []
        self.completed: list[str] = []
        self.slowest = 0.0
        self.refused = 0
        self._stop = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._queue = await Queue.open(self.url, workspace="moving")
        jobs = (self._submit(), *(self._work(f"worker-{number}") for number in range(4)))
        self._running = [asyncio.create_task(job) for job in jobs]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._running)
        await self._queue.close()

    async def _timed(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the answer; retry temporary refusals, as a client does."""
        began = time.perf_counter()
        while True:
            try:
                answer = await call()
            except StoreError:
                self.refused += 1
                continue
            self.slowest = max(self.slowest, time.perf_counter() - began)
            return answer

    async def _submit(self) -> None:
        while not self._stop.is_set():
            self.submitted.append((await self._timed(lambda: self._queue.submit(type="new"))).id)
            await asyncio.sleep(0.01)

    async def _work(self, name: str) -> None:
        while True:
            claims = await self._timed(lambda: self._queue.claim(name, wait=0.5, start=True, types=["new"]))
            for claim in claims:
                await self._timed(lambda claim=claim: self._queue.complete(claim.token, {}))  # type: ignore[misc]  # mypy cannot type the default
                self.completed.append(claim.id)
            if not claims and self._stop.is_set():
                return


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.databases", description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--spread", action="store_true", help="figures for 1, 2 and 4 databases instead of a move")
    parser.add_argument("--drain", metavar="URL", help="one process of --spread")
    parser.add_argument("--workspace", default="default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.drain:
            asyncio.run(drain(options.drain, options.workspace, options.tasks))
        elif options.spread:
            for databases in (1, 2, 4):
                asyncio.run(spread(databases, options.tasks, Path(folder)))
        else:
            asyncio.run(move_under_load(options.tasks, Path(folder)))


if __name__ == "__main__":
    main()
