"""Shiftwork on SQLite, PostgreSQL or over HTTP. Uses public names only, since it also runs with other checkouts."""

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

from common import CALLERS, EVERY_SEC, batches, main, mark, priority, timed

from shiftwork import open_queue
from shiftwork.worker import Context, Worker

SETTINGS: dict[str, list[str]] = {"default": [], "fast": ["--concurrency", "1000"]}

worker = Worker(stop_grace_sec=2, cancel_grace_sec=1)


@worker.handler("noop")
async def noop(_context: Context) -> None:
    mark()


@worker.handler("stamp")
async def stamp(context: Context) -> None:
    mark(context.payload["sent"])


@worker.handler("hang")
async def hang(_context: Context) -> None:
    mark()
    await asyncio.sleep(600)


def run(main: Any) -> None:
    try:
        import uvloop  # noqa: PLC0415  # like the worker: if installed

        uvloop.run(main)
    except ImportError:
        asyncio.run(main)


def prepare(url: str) -> None:
    async def opened() -> None:
        async with await open_queue(url):
            pass

    run(opened())


def single(url: str, count: int) -> None:
    async def submit() -> None:
        async with await open_queue(url) as queue:
            with timed():
                for number in range(count):
                    await queue.submit({"type": "noop", "payload": {"n": number}})

    run(submit())


def bulk(url: str, count: int, mixed: int) -> None:
    async def submit() -> None:
        async with await open_queue(url) as queue:
            with timed():
                for batch in batches(count):
                    await queue.submit_many([_task(number, mixed) for number in batch])

    run(submit())


def _task(number: int, mixed: int) -> dict[str, Any]:
    task: dict[str, Any] = {"type": "noop", "payload": {"n": number}}
    return {**task, "priority": priority(number)} if mixed else task


def send(url: str, count: int) -> None:
    async def submit() -> None:
        async with await open_queue(url) as queue:
            for _ in range(count):
                began = time.perf_counter()
                await queue.submit({"type": "stamp", "payload": {"sent": time.time_ns()}})
                await asyncio.sleep(max(0.0, EVERY_SEC - (time.perf_counter() - began)))

    run(submit())


def hang_one(url: str) -> None:
    async def submit() -> None:
        async with await open_queue(url) as queue:
            await queue.submit({"type": "hang"})

    run(submit())


def work(url: str, settings: str) -> None:
    command = [sys.executable, "-m", "shiftwork", "work", "on_shiftwork:worker", "--store", url, "--quiet"]
    os.execv(sys.executable, [*command, *SETTINGS[settings]])  # noqa: S606  # it needs none


def serve(store: str) -> None:
    """Start a server and print only its address; the server prints it as JSON."""
    line = [sys.executable, "-m", "shiftwork", "serve", "--store", store, "--port", "0", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        print(json.loads(server.stdout.readline())["url"], flush=True)
        server.wait()


def agents(url: str, _count: int) -> None:
    """Drain all ready tasks with 50 agents in this process."""

    async def drain() -> None:
        async with await open_queue(url) as queue:

            async def agent(name: str) -> None:
                while assignments := await queue.claim(name, start=True):
                    for assignment in assignments:
                        await queue.complete(assignment.token)

            with timed():
                await asyncio.gather(*(agent(f"agent-{number}") for number in range(CALLERS)))

    run(drain())


def crowd(url: str, seconds: int) -> None:
    """Print the milliseconds from submit to claim: 200 agents wait for one task each, 200 tasks a second arrive."""

    async def wait() -> None:
        count, waits, done = 200 * seconds, list[float](), asyncio.Event()
        async with await open_queue(url) as queue:

            async def agent(name: str) -> None:
                while True:
                    for assignment in await queue.claim(name, start=True, wait=25):
                        waits.append(1000 * (time.perf_counter() - assignment.payload["sent"]))
                        await queue.complete(assignment.token)
                        if len(waits) == count:
                            done.set()

            waiting = [asyncio.create_task(agent(f"agent-{number}")) for number in range(200)]
            await asyncio.sleep(2)
            began, under_way = time.perf_counter(), list[asyncio.Task[Any]]()
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number / 200 - time.perf_counter()))
                task = {"type": "noop", "payload": {"sent": time.perf_counter()}}
                under_way.append(asyncio.create_task(queue.submit(task)))
            await asyncio.gather(*under_way)
            async with asyncio.timeout(60):
                await done.wait()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        ranked = sorted(waits)
        print(ranked[count // 2], ranked[count * 95 // 100])

    run(wait())


if __name__ == "__main__":
    main(
        prepare=prepare, single=single, bulk=bulk, send=send, hang=hang_one, work=work,
        serve=serve, agents=agents, crowd=crowd,
    )  # fmt: skip
