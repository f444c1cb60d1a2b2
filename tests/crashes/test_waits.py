"""kill -9 of a process that parks and frees tasks: acknowledged changes are kept, and no task waits forever."""

import asyncio
import random
import sys
from asyncio.subprocess import PIPE

from shiftwork import Queue
from tests.crashes.test_kill import until_alone
from tests.races.fleet import stranded

KILLS = 6


async def wait_until_killed(url: str, lines: int) -> list[tuple[str, str]]:
    """Kill the process some time after this many answers; return what was acknowledged to it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.crashes.waiter", url, stdout=PIPE)
    assert process.stdout is not None
    heard = [await process.stdout.readline() for _ in range(lines)]
    process.kill()
    heard += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    return [(word, what) for word, what in (line.decode().split() for line in heard if line.endswith(b"\n"))]


async def test_killed_process_strands_no_wait(store_url: str) -> None:
    chance = random.Random(11)
    heard: list[tuple[str, str]] = []
    async with Queue.open(store_url) as queue:
        await queue.settings.set("on_stale", "reclaim")  # its processes die often, and that is not the subject
    for _ in range(KILLS):
        heard += await wait_until_killed(store_url, chance.randrange(1, 20))
        await until_alone(store_url)
        async with Queue.open(store_url) as queue:
            await queue.runtimes.report_gone("waiter")
            statuses = {what: (await queue.get(what)).status for _, what in heard}
            freed = {what for word, what in heard if word in {"freed", "completed"}}
            assert all(statuses[what] != "pending" for what in freed)
            assert await stranded(queue) == []
    async with Queue.open(store_url) as queue:
        for task in (await queue.tasks.list(status="pending", limit=1000)).tasks:
            (wait,) = task.waits  # whatever is pending can be freed
            assert (await queue.waits.signal(wait.signal or "")).freed == 1
        assert "pending" not in (await queue.status(fresh=True)).counts
