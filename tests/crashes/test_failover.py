"""The primary is killed under load and its standby takes over: nothing acknowledged is lost or repeated."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

import pytest

from shiftwork import Client, Queue
from shiftwork.model.errors import StoreUnavailable
from shiftwork.testing import MovedClock, pass_time
from tests.outages.test_restarts import Fleet, check
from tests.races.fleet import handles, hire
from tests.server.processes import start
from tests.services import Postgres
from tests.services.standby import Standby
from tests.stores.stalling import impatient


class Pair(NamedTuple):
    """A primary, and the standby that has every commit before it is answered."""

    primary: Postgres
    standby: Standby
    url: str

    def fail_over(self) -> None:
        self.primary.kill9()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Only processes are killed, not machines, so written data survives without a flush to disk."""
    with Postgres.start(durable=False) as primary:
        name = primary.create_database()
        with Standby.of(primary) as standby:
            hosts = f"{primary.host}:{primary.port},{standby.host}:{standby.port}"
            yield Pair(primary, standby, f"postgresql://postgres@{hosts}/{name}")


async def test_clients_servers_and_workers_survive_a_failover(pair: Pair) -> None:
    """Programs on the database, a server with its clients, and a worker process with a command as agent."""
    fleet = Fleet()
    async with (
        await start(pair.url) as server,
        await Client.open(server.url) as submitter,
        await Client.open(server.url) as client,
        handles(pair.url, 2) as (queue, other),
        working(pair.url, "pages"),
    ):
        apart = queue.in_workspace("pages")
        await hire(queue, "direct", "remote")
        pages = await apart.submit_many([{"type": "page"}] * 6)
        loops = [
            *(fleet.produce(queue), fleet.produce(cast(Queue, submitter))),
            *(fleet.work(other, "direct"), fleet.work(cast(Queue, client), "remote")),
        ]
        running = [asyncio.create_task(loop) for loop in loops]
        await fleet.until(20)
        await until_up(apart)
        await asyncio.to_thread(pair.fail_over)
        pages += await apart.submit_many([{"type": "page"}] * 3)
        await fleet.until(20)
        fleet.ending = True
        await asyncio.gather(*running)
        await until_completed(apart, {page.id for page in pages})
        await check(queue, fleet)


@asynccontextmanager
async def working(url: str, workspace: str) -> AsyncIterator[None]:
    command = ["work", "--store", url, "--workspace", workspace, "--type", "page", "--", "true"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "shiftwork", *command, stdout=DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def until_up(queue: Queue) -> None:
    """Wait for the first heartbeat, since a worker that cannot reach its store at the start exits with an error."""
    async with asyncio.timeout(60):
        while not await queue.runtimes.list():  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)


async def until_completed(queue: Queue, ids: set[str]) -> None:
    """Wait until all of these are completed, according to the log."""
    async with asyncio.timeout(120):
        async for event in queue.follow():
            if event.verb == "completed":
                ids.discard(event.task_id or "")
            if not ids:
                return


async def test_standby_accepts_no_work_and_leases_survive_the_failover(pair: Pair) -> None:
    """Until its promotion, nothing is acknowledged; agents that cannot send heartbeats meanwhile keep their tasks."""
    clock = MovedClock()
    async with Queue.open(pair.url, clock=clock) as queue:
        task = await queue.submit(type="page", timeout_sec=86_400)
        (held,) = await queue.claim("worker", start=True)
        await asyncio.to_thread(pair.primary.kill9)
        clock.advance(300)
        with impatient():
            with pytest.raises(StoreUnavailable):
                await queue.heartbeat(held.token)
            with pytest.raises(StoreUnavailable):
                await Queue.open(pair.url)
        await asyncio.to_thread(pair.standby.promote)
        await pass_time(queue, clock, 1)
        assert (await queue.get(task.id)).status == "running"
        await queue.complete(held.token)
