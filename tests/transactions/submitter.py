"""A program that submits in its own transaction and reports where it is; killed by a test."""

import asyncio
import sys

import apsw
import asyncpg

from shiftwork import Queue


async def main(url: str, dsn: str) -> None:
    async with Queue.open(url) as queue:
        if dsn.startswith("sqlite"):
            connection = apsw.Connection(dsn.removeprefix("sqlite:///"))
            connection.execute("begin immediate")
            connection.execute("insert into orders values ('mine')")
            await queue.submit(type="code", idempotency_key="once", connection=connection)
            await _report("submitted")
            connection.execute("commit")
        else:
            server = await asyncpg.connect(dsn)
            async with server.transaction():
                await server.execute("insert into orders values ('mine')")
                await queue.submit(type="code", idempotency_key="once", connection=server)
                await _report("submitted")
        await _report("committed")


async def _report(where: str) -> None:
    """Print a line and wait for one before continuing."""
    sys.stdout.write(where + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)


asyncio.run(main(*sys.argv[1:]))
