"""pgqueuer, as fast as it gets with several processes: batches of 100, uvloop.

`fill URL COUNT` submits in bulk and says how long that took, `work URL MARKS` works, `send URL COUNT EVERY` submits
one by one, with the time of the call.
"""

import asyncio
import os
import sys
import time

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries


async def fill(url: str, count: int) -> None:
    """Install its tables and submit in batches of 1000."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    await queries.install()
    began = time.perf_counter()
    for first in range(0, count, 1000):
        size = min(1000, count - first)
        await queries.enqueue(["noop"] * size, [b'{"n":1}'] * size, [0] * size)
    print(time.perf_counter() - began)


async def work(url: str, marks: str) -> None:
    app = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))
    out = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @app.entrypoint("noop")
    async def noop(_job: object) -> None:
        os.write(out, b".")

    @app.entrypoint("stamp")
    async def stamp(job) -> None:  # type: ignore[no-untyped-def]  # the peer is not installed where types are checked
        os.write(out, b"%d\n" % (time.time_ns() - int(job.payload)))

    await app.run(batch_size=100)


async def send(url: str, count: int, every_sec: float) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    for _ in range(count):
        await queries.enqueue("stamp", b"%d" % time.time_ns(), 0)
        await asyncio.sleep(every_sec)


if __name__ == "__main__":
    verb, where, what, *more = sys.argv[1:]
    if verb == "fill":
        asyncio.run(fill(where, int(what)))
    elif verb == "send":
        uvloop.run(send(where, int(what), float(more[0])))
    else:
        uvloop.run(work(where, what))
