"""kill -9 of a server that fires triggers: each tick and each event fires exactly once."""

import asyncio
import random
import sys
from asyncio.subprocess import PIPE

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock
from shiftwork.triggers import maintenance as triggers
from tests.crashes.test_kill import until_alone

KILLS = 5
START = 1_765_800_000.0


async def fire_until_killed(url: str, start: float, lines: int) -> float:
    """Kill the process; return the last minute it reported as done."""
    program = [sys.executable, "-m", "tests.crashes.firer", url, str(start)]
    process = await asyncio.create_subprocess_exec(*program, stdout=PIPE)
    assert process.stdout is not None
    heard = [await process.stdout.readline() for _ in range(lines)]
    process.kill()
    heard += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    return max(float(line.split()[1]) for line in heard if line.endswith(b"\n"))


@pytest.mark.requirement("F-241")
async def test_killed_server_loses_and_repeats_no_tick(store_url: str) -> None:
    chance = random.Random(7)
    async with Queue.open(store_url, clock=MovedClock(START)) as queue:
        tick = {"tick": {"from": "tick"}}
        task = {"type": "tick", "title": "{{ tick }}"}
        on = {"kind": "cron", "at": "* * * * *", "missed": "all"}
        await queue.triggers.save("minutes", on=on, task=task, parameters=tick)
        follow = {"kind": "event", "events": ["task.created"], "where": {"type": "tick"}}
        made = {"type": "followed", "title": "{{ tick }}"}
        await queue.triggers.save("follow", on=follow, task=made, parameters={"tick": {"from": "task_id"}})
    now = START
    for _ in range(KILLS):
        now = await fire_until_killed(store_url, now, chance.randrange(1, 8))
        await until_alone(store_url)
    async with Queue.open(store_url, clock=MovedClock(now + 60)) as queue:
        await triggers.run(queue.engine)
        ticks = (await queue.tasks.list(type="tick", limit=1000)).tasks
        minutes = sorted(str(task.title) for task in ticks)
        assert len(minutes) == len(set(minutes)) == int(now + 60 - START) // 60
        followed = [task.title for task in (await queue.tasks.list(type="followed", limit=1000)).tasks]
        assert sorted(map(str, followed)) == sorted(task.id for task in ticks)
