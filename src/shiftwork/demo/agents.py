"""The demo's agents: a worker as users would write it, except that it sleeps instead of calling a model."""

from __future__ import annotations

import asyncio
from typing import Any

from shiftwork.worker import Context, Fail, Worker

RIVALS = ("Acme", "Globex", "Initech")
STEPS = 5

worker = Worker(concurrency=1, stop_grace_sec=5)


async def think(context: Context, seconds: float, cost_usd: float) -> None:
    """Simulate work: sleep, and report progress and cost."""
    for step in range(1, STEPS + 1):
        await asyncio.sleep(seconds / STEPS)
        context.spent(cost_usd / STEPS, tokens_in=900, tokens_out=150)
        await context.progress({"pct": 100 * step // STEPS})


@worker.handler("research")
async def research(context: Context) -> dict[str, Any]:
    """Spawn a lookup of each rival, free the slot meanwhile, and continue with the results."""
    subtasks = await context.subtasks()
    if not subtasks:
        await think(context, 0.6, 0.03)
        await context.spawn_and_wait(
            [
                {"type": "lookup", "title": f"Look at {competitor}", "payload": {"rival": competitor}}
                for competitor in RIVALS
            ]
        )
    await think(context, 0.4, 0.02)
    return {"findings": [subtask.data for subtask in subtasks]}


@worker.handler("lookup")
async def lookup(context: Context) -> str:
    await think(context, 0.5, 0.01)
    return f"{context.payload['rival']} has a headline, a price list and no demo"


@worker.handler("design")
async def design(context: Context) -> dict[str, str]:
    """Fail the first attempt, as model calls sometimes do."""
    if context.task.attempts == 0:
        await think(context, 0.5, 0.02)
        raise Fail("crash", "the model stopped in mid-sentence")
    await think(context, 0.7, 0.04)
    return {"wireframe": "hero, three columns, one button"}


@worker.handler("code")
async def code(context: Context) -> dict[str, int]:
    await think(context, 2.5, 0.20)
    return {"files": 4}


@worker.handler("synthesis")
async def synthesis(context: Context) -> str:
    await think(context, 0.8, 0.05)
    return "One promise, one price, one button"


@worker.handler("deploy")
async def deploy(context: Context) -> dict[str, str]:
    await think(context, 0.8, 0.03)
    return {"url": "https://example.com"}
