"""Nightly audits on a schedule: each night two agents check, and a third reports their findings.

    python audits.py                         # rehearse a week at once, in memory, with a movable clock
    python audits.py sqlite:///audits.db     # for real: keep the schedule, and work until you stop it

For real, any running server or worker fires the schedule, once a night, however many run. After nights on which none
ran, one audit makes up for all of them.
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

# `overlap: skip`: do not start an audit while an earlier one is unfinished.
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
    """Simulate an agent with a scanner: in the night to Wednesday one package is out of date."""
    return ["left-pad is out of date"] if ctx.payload["night"].startswith("2026-03-04") else []


@worker.handler("audit-secrets")
async def audit_secrets(ctx: Context) -> list[str]:
    """Simulate another agent: it finds nothing."""
    await ctx.progress({"files": 120})
    return []


@worker.handler("report")
async def report(ctx: Context) -> str:
    """Combine the outputs of the dependencies, which come with the task."""
    found = [line for given in ctx.inputs for line in given.data]
    return "; ".join(found) or "nothing"


async def rehearse() -> None:
    """Rehearse a week without work on Friday: that night's audit is late, and the next one is skipped."""
    clock = MovedClock(MONDAY)
    async with Queue.open("sqlite://:memory:", clock=clock) as queue:
        await queue.triggers.save("nightly", **NIGHTLY)
        for day in ("Tue", "Wed", "Thu", "Fri", "Sat", "Sun"):
            await pass_time(queue, clock, DAY)
            if day != "Fri":
                await run_until_idle(worker, queue, clock=clock)
            (last, *_) = await queue.triggers.firings("nightly", limit=1)
            print(f"{day}: {last.outcome} {last.reason or ''}".rstrip())
        await print_reports(queue)


async def print_reports(queue: AnyQueue) -> None:
    """Print the report of every night."""
    for task in (await queue.tasks.list(type="report")).tasks:
        dag = await queue.dags.get(task.dag_id)
        print(f"{dag.title}: {task.result.data if task.result else task.status}")


async def keep(url: str) -> None:
    """Save the schedule, which may exist already, and work. Only one worker of the fleet has to do this."""
    async with open_queue(url) as queue:
        await queue.triggers.save("nightly", **NIGHTLY)
        trigger = await queue.triggers.get("nightly")
        assert trigger.next_at is not None
        print(f"next audit: {datetime.fromtimestamp(trigger.next_at, UTC):%Y-%m-%d %H:%M} UTC")
    await worker.run(url)


if __name__ == "__main__":
    asyncio.run(keep(sys.argv[1]) if len(sys.argv) > 1 else rehearse())
