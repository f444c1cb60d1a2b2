"""kill -9 of processes that hold serial keys: no key stays without a claim, and no task waits in vain."""

import asyncio
import random
import sys
from asyncio.subprocess import PIPE

import pytest

from shiftwork import Queue
from tests.conformance.steps import sql
from tests.crashes.test_kill import until_alone

KILLS = 6
HOLD = "('claimed', 'running', 'validating')"
KEYS_WITHOUT_A_CLAIM = f"""
select s.key from serials s left join tasks t on t.id = s.task_id and t.fence = s.fence and t.status in {HOLD}
where s.task_id is not null and t.id is null"""
CLAIMS_WITHOUT_A_KEY = f"""
select t.id from tasks t left join serials s on s.task_id = t.id and s.fence = t.fence
where t.status in {HOLD} and s.key is null"""
HELD_FOR_NOBODY = """
select t.id from tasks t left join serial_holds h on h.task_id = t.id
left join serials s on s.workspace = h.workspace and s.key = h.key
where t.hold = 'serial' and s.key is null"""
"""A key that no one has at the moment has a row, too, as long as someone waits for it."""


async def live_until_killed(url: str, lines: int) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.crashes.serial", url, stdout=PIPE)
    assert process.stdout is not None
    for _ in range(lines):
        await process.stdout.readline()
    process.kill()
    await process.stdout.read()
    await process.wait()


@pytest.mark.timeout(240)
async def test_killed_processes_lose_no_serial_key(store_url: str) -> None:
    chance = random.Random(11)
    async with Queue.open(store_url) as queue:
        await queue.settings.set("serialize_by", "key")
        await queue.settings.set("on_stale", "reclaim")  # its processes die often, and that is not the subject
    for _ in range(KILLS):
        await live_until_killed(store_url, chance.randrange(1, 40))
        await until_alone(store_url)
        async with Queue.open(store_url) as queue:
            for query in (KEYS_WITHOUT_A_CLAIM, CLAIMS_WITHOUT_A_KEY, HELD_FOR_NOBODY):
                assert await sql(queue, query) == [], query
    async with Queue.open(store_url) as queue:
        await queue.runtimes.report_gone("serial")
        await queue.agents.register(id="last", max_concurrent_tasks=None)
        while taken := await queue.claim("last", 10, start=True):
            assert len({assignment.task().serial_key for assignment in taken}) == len(taken)
            for assignment in taken:
                await queue.complete(assignment.token)
        counts = (await queue.status(fresh=True)).counts
        assert counts.keys() <= {"completed", "cancelled"}
        assert await sql(queue, "select task_id from serials union all select task_id from serial_holds") == []
