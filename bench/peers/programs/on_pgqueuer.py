"""pgqueuer on PostgreSQL with asyncpg."""

import asyncio
import time
from typing import Any

import asyncpg
import uvloop
from common import EVERY_SEC, batches, main, mark, priority, timed
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

SETTINGS: dict[str, dict[str, int]] = {"default": {}, "fast": {"batch_size": 1000}}


async def connected(url: str) -> Queries:
    return Queries(AsyncpgDriver(await asyncpg.connect(url)))


def prepare(url: str) -> None:
    async def install() -> None:
        await (await connected(url)).install()

    asyncio.run(install())


def single(url: str, count: int) -> None:
    async def submit() -> None:
        queries = await connected(url)
        with timed():
            for number in range(count):
                await queries.enqueue("noop", b'{"n": %d}' % number, 0)

    uvloop.run(submit())


def bulk(url: str, count: int, mixed: int) -> None:
    async def submit() -> None:
        queries = await connected(url)
        with timed():
            for batch in batches(count):
                payloads: list[bytes | None] = [b'{"n": %d}' % number for number in batch]
                priorities = [priority(number) if mixed else 0 for number in batch]
                await queries.enqueue(["noop"] * len(batch), payloads, priorities)

    uvloop.run(submit())


def send(url: str, count: int) -> None:
    async def submit() -> None:
        queries = await connected(url)
        for _ in range(count):
            began = time.perf_counter()
            await queries.enqueue("stamp", b"%d" % time.time_ns(), 0)
            await asyncio.sleep(max(0.0, EVERY_SEC - (time.perf_counter() - began)))

    asyncio.run(submit())


def hang_one(url: str) -> None:
    async def submit() -> None:
        await (await connected(url)).enqueue("hang", b"", 0)

    asyncio.run(submit())


def work(url: str, settings: str) -> None:
    async def run() -> None:
        app = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

        @app.entrypoint("noop")
        async def noop(_job: Any) -> None:
            mark()

        @app.entrypoint("stamp")
        async def stamp(job: Any) -> None:
            mark(int(job.payload))

        @app.entrypoint("hang")
        async def hang(_job: Any) -> None:
            mark()
            await asyncio.sleep(600)

        await app.run(**SETTINGS[settings])

    (asyncio.run if settings == "default" else uvloop.run)(run())


main(prepare=prepare, single=single, bulk=bulk, send=send, hang=hang_one, work=work)
