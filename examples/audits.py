"""Nightly audits, started by the clock: each night two agents look, and a third writes down what they found.

    python audits.py                         # rehearse a week in a moment, in memory, with a clock that is moved
    python audits.py sqlite:///audits.db     # in earnest: keep the schedule, and work until you stop it

In earnest any server or worker that runs fires the schedule, each night once, however many run; nights at which none
ran are made up for by one audit.
"""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

from shiftwork import AnyQueue, Queue, open_queue
from shiftwork.testing import MovedClock, pass_time, run_until_idle
from shiftwork.worker import Context, Worker

worker = Worker(concurrency=2)
DAY = 86400.0
MONDAY = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()

# `overlap: skip`: while the audit of an earlier night is not done, no other is begun.
NIGHTLY: dict[str, Any] = {
    "on": {"kind": "cron", "at": "30 2 * * *", "zone": "Europe/Berlin", "missed": "one"},
    "parameters": {"night": {"from": "tick"}},
    "overlap": "skip",
    "dag": {
        "title": "audit of {{ night }}",
        "tasks": [
            {"key": "packages", "type": "audit-packages", "payload": {"night": "{{ night }}"}},
            {"key": "secrets", "type": "audit-secrets", "payload": {"night": "{{ night }}"}},
            {
                "key": "report",
                "type": "report",
                "dependencies": ["packages", "secrets"],
                "spec": {"context_refs": ["task:packages:output", "task:secrets:output"]},
            },
        ],
    },
}


@worker.handler("audit-packages")
async def audit_packages(ctx: Context) -> list[str]:
    """What an agent with a scanner would find: in the night to Wednesday something is out of date."""
    return ["left-pad is out of date"] if ctx.payload["night"].startswith("2026-03-04") else []


@worker.handler("audit-secrets")
async def audit_secrets(ctx: Context) -> list[str]:
    """What another would find: nothing, as it should be."""
    await ctx.progress({"files": 120})
    return []


@worker.handler("report")
async def report(ctx: Context) -> str:
    """What those it depends on have handed in comes with the task."""
    found = [line for given in ctx.inputs for line in given.data]
    return "; ".join(found) or "nothing"


async def rehearse() -> None:
    """A week in which nobody works on Friday: the audit of that night is late, and the next one is left out."""
    clock = MovedClock(MONDAY)
    async with await Queue.open("sqlite://:memory:", clock=clock) as queue:
        await queue.save_trigger("nightly", NIGHTLY)
        for day in ("Tue", "Wed", "Thu", "Fri", "Sat", "Sun"):
            await pass_time(queue, clock, DAY)
            if day != "Fri":
                await run_until_idle(worker, queue, clock=clock)
            (last, *_) = await queue.firings("nightly", limit=1)
            print(f"{day}: {last.outcome} {last.reason or ''}".rstrip())
        await tell(queue)


async def tell(queue: AnyQueue) -> None:
    """What came of every night."""
    for task in (await queue.tasks(type="report")).tasks:
        dag = await queue.dag(task.dag_id)
        print(f"{dag.title}: {task.result.data if task.result else task.status}")


async def keep(url: str) -> None:
    """Save the schedule, which may be there already, and work. Only one worker of the fleet has to do so."""
    async with await open_queue(url) as queue:
        await queue.save_trigger("nightly", NIGHTLY)
        seen = await queue.trigger("nightly")
        assert seen.next_at is not None
        print(f"next audit: {datetime.fromtimestamp(seen.next_at, UTC):%Y-%m-%d %H:%M} UTC")
    await worker.run(url)


if __name__ == "__main__":
    asyncio.run(keep(sys.argv[1]) if len(sys.argv) > 1 else rehearse())
