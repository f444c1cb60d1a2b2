"""procrastinate on PostgreSQL with psycopg 3."""

import asyncio
import sys
from typing import Any

import procrastinate
from common import batches, main, mark, paced, priority, timed

POOL: dict[str, dict[str, int]] = {"default": {}, "fast": {"min_size": 20, "max_size": 20}}
SETTINGS: dict[str, dict[str, Any]] = {"default": {}, "fast": {"concurrency": 30, "delete_jobs": "successful"}}


def tasks(app: procrastinate.App) -> tuple[Any, Any, Any]:
    @app.task(name="noop")
    async def noop(n: int) -> None:  # noqa: ARG001  # by its name
        mark()

    @app.task(name="stamp")
    async def stamp(sent: int) -> None:
        mark(sent)

    @app.task(name="hang")
    async def hang() -> None:
        mark()
        await asyncio.sleep(600)

    return noop, stamp, hang


client = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=sys.argv[2]))
noop, stamp, hang = tasks(client)


def prepare(_url: str) -> None:
    with client.open():
        client.schema_manager.apply_schema()


def single(_url: str, count: int) -> None:
    with client.open(), timed():
        for number in range(count):
            noop.defer(n=number)


def bulk(_url: str, count: int, mixed: int) -> None:
    """Submit in batches; each batch has one priority."""
    with client.open(), timed():
        for batch in batches(count, 100 if mixed else 1000):
            task = noop.configure(priority=priority(batch[0])) if mixed else noop
            task.batch_defer(*({"n": number} for number in batch))


def send(_url: str, count: int) -> None:
    with client.open():
        paced(count, lambda sent: stamp.defer(sent=sent))


def hang_one(_url: str) -> None:
    with client.open():
        hang.defer()


def work(url: str, settings: str) -> None:
    async def run() -> None:
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, **POOL[settings]))
        tasks(app)
        async with app.open_async():
            await app.run_worker_async(**SETTINGS[settings])

    asyncio.run(run())


main(prepare=prepare, single=single, bulk=bulk, send=send, hang=hang_one, work=work)
