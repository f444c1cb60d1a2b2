"""The worker programs that the benchmark runs in separate processes."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from shiftwork.worker import Context, Fail, Worker

FAULTS = 0.05

worker = Worker(stop_grace_sec=2, cancel_grace_sec=1)


@worker.handler("noop")
async def noop(_context: Context) -> int:
    return 1


@worker.handler("stamp")
async def stamp(_context: Context) -> float:
    """Return when the handler began, by the clock of this machine."""
    return time.time()


@worker.handler("sleep")
async def sleep(context: Context) -> None:
    await asyncio.sleep(context.payload["seconds"])


@worker.handler("flaky")
async def flaky(_context: Context) -> dict[str, Any]:
    """Fail one attempt in twenty, for a transient reason."""
    if random.random() < FAULTS:
        raise Fail("crash", "connection reset by peer")
    return {"ok": True}


@worker.handler("hang")
async def hang(_context: Context) -> None:
    await asyncio.sleep(600)
