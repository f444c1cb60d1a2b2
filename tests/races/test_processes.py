"""Concurrency between operating system processes instead of connections."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

from shiftwork import Queue
from tests.races.fleet import stranded, together


async def start(url: str, agent: str) -> Process:
    """Start a claimer that has opened the queue and waits for a signal to begin."""
    program = [sys.executable, "-m", "tests.races.claimer", url, agent]
    process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def test_processes_share_a_queue_without_repeating_tasks(store_url: str) -> None:
    """Forty pairs of parent and child: nothing is run twice, and no child is stranded."""
    async with Queue.open(store_url) as queue:
        parents = await queue.submit_many([{"type": "parent"}] * 40)
        await queue.submit_many([{"type": "child", "dependencies": [parent.id]} for parent in parents])
        processes = await together(*(start(store_url, f"agent-{number}") for number in range(4)))
        outputs = await together(*(process.communicate(b"go\n") for process in processes))
        done = [line for out, _ in outputs for line in out.decode().split()]
        assert [process.returncode for process in processes] == [0] * 4
        assert len(done) == len(set(done))
        counts = (await queue.status()).counts
        assert counts["completed"] == len(done)
        assert counts.get("pending", 0) == 0  # claimers end when they find nothing, so a few may be left ready
        assert sum(counts.values()) == 80
        assert await stranded(queue) == []


async def test_waiting_claim_is_woken_by_another_process(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        await queue.settings.set("fallback_poll_sec", 25)
        await queue.settings.set("poll_interval_sec", 25)
        waiting = asyncio.create_task(queue.claim("worker", wait=20))
        program = (
            "import asyncio, sys\nfrom shiftwork import Queue\n"
            "async def main():\n"
            "    async with Queue.open(sys.argv[1]) as queue:\n"
            "        await queue.submit(type='code')\n"
            "        await asyncio.sleep(0.1)\n"  # the wake-up is sent after the answer
            "asyncio.run(main())"
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, store_url)
        (taken,) = await waiting
        assert taken.type == "code"
        assert await process.wait() == 0
