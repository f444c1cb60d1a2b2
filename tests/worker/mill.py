"""A worker for real processes. Its handlers report and wait for instructions through files in a folder."""

import asyncio
import os
from pathlib import Path

from shiftwork.worker import Context, Worker

worker = Worker("mill", concurrency=2, stop_grace_sec=20, cancel_grace_sec=1)


def _folder(ctx: Context) -> Path:
    return Path(ctx.payload["folder"])


@worker.handler("grind")
async def grind(ctx: Context) -> int:
    """Report the process, then wait for `go`."""
    (_folder(ctx) / f"{ctx.token}.{os.getpid()}").touch()
    while not (_folder(ctx) / "go").exists():  # noqa: ASYNC110  # a test's file, not a service
        await asyncio.sleep(0.02)
    return os.getpid()


@worker.handler("burst")
async def burst(ctx: Context) -> None:
    """Kill the process."""
    os._exit(7)


@worker.handler("leave")
async def leave(ctx: Context) -> str:
    """End the process the first time, with the given exit code."""
    note = _folder(ctx) / f"{ctx.id}.left"
    if note.exists():
        return "done"
    note.touch()
    os._exit(ctx.payload["code"])


@worker.handler("chatter")
def chatter(ctx: Context) -> int:
    """Print a lot."""
    for _ in range(1000):
        print("x" * 50_000)  # noqa: T201  # that is its purpose
    return 50_000_000


@worker.handler("deaf")
async def deaf(ctx: Context) -> None:
    """Ignore signals."""
    (_folder(ctx) / f"{ctx.token}.{os.getpid()}").touch()
    while True:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            continue
