"""Handlers whose own asyncio tasks raise base exceptions, which must not affect other handlers."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.worker import Context, Worker

APP = """
import asyncio, sys
from shiftwork import Worker

worker = Worker(concurrency=10)
broken = []

async def leaves():
    sys.exit(0)

async def interrupts():
    raise KeyboardInterrupt

async def in_group(tool):
    async with asyncio.TaskGroup() as group:
        group.create_task(tool())
        await asyncio.sleep(60)

WAYS = {
    "timed": lambda tool: asyncio.wait_for(tool(), 60),
    "gathered": lambda tool: asyncio.gather(tool(), asyncio.sleep(0)),
    "grouped": in_group,
    "awaited": lambda tool: asyncio.create_task(tool()),
}

@worker.handler("breaks")
async def breaks(ctx):
    try:
        await WAYS[ctx.payload["way"]](globals()[ctx.payload["tool"]])
    finally:
        broken.append(ctx.id)

@worker.handler("innocent")
async def innocent(ctx):
    while len(broken) < 8:
        await asyncio.sleep(0.01)
    return 1
"""
WAYS = ("timed", "gathered", "grouped", "awaited")
TOOLS = {"leaves": "SystemExit", "interrupts": "KeyboardInterrupt"}


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_worker_survives_base_exceptions_in_handler_tasks(sqlite_url: str, tmp_path: Path, loop: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    if loop == "asyncio":
        (tmp_path / "uvloop.py").write_text("raise ImportError\n")
    told_to = [{"way": way, "tool": tool} for way in WAYS for tool in TOOLS]
    tasks: list[dict[str, Any]] = [{"type": "innocent"}, *({"type": "breaks", "payload": output} for output in told_to)]
    async with Queue.open(sqlite_url) as queue:
        made = await queue.submit_many([{**task, "max_attempts": 1} for task in tasks])
        line = [sys.executable, "-m", "shiftwork", "--store", sqlite_url, "work", "app:worker", "--until-idle"]
        done = await asyncio.to_thread(subprocess.run, [*line, "--json"], cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done.stderr
        output = json.loads(done.stdout)
        assert (output["completed"], output["failed"]) == (1, 8)
        innocent, *broken = [await queue.get(task.id) for task in made]
        assert innocent.status == "completed"
        for task in broken:
            assert task.failure_reason == "crash"
            assert str(task.last_error).startswith(TOOLS[task.payload["tool"]])


async def test_ending_program_releases_tasks_of_its_worker(sqlite_url: str) -> None:
    """`asyncio.run` cancels all tasks when one raises a base exception: those of the handlers before the worker."""
    worker = Worker(concurrency=2)

    @worker.handler("innocent")
    async def innocent(_context: Context) -> None:
        await asyncio.Event().wait()

    @worker.handler("breaks")
    async def breaks(_context: Context) -> None:
        await asyncio.wait_for(leave(), 60)

    async def leave() -> None:
        sys.exit(3)

    async with Queue.open(sqlite_url) as queue:
        kinds = ["innocent", "breaks"]
        made = await queue.submit_many([{"type": kind, "max_attempts": 1} for kind in kinds])
        with pytest.raises(SystemExit):
            await asyncio.to_thread(asyncio.run, worker.run(sqlite_url))
        tasks = [await queue.get(task.id) for task in made]
        assert [(task.status, task.attempts) for task in tasks] == [("ready", 0), ("dead_lettered", 1)]
        assert tasks[1].failure_reason == "crash"
