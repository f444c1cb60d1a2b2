"""A task of ten steps with effects between them, and an outside file that records every action."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from shiftwork import open_queue
from shiftwork.server.options import Options
from shiftwork.server.serve import serve
from shiftwork.steps.model import Effect
from shiftwork.worker import Context, Happened, Worker
from tests.crashes import points

STEPS = 10
EFFECTS = (0, 4, 9)
"""Behind these steps there is one."""


def worker_on(outside: Path) -> Worker:
    """Handlers that write a line to the outside file for each action."""
    worker = Worker("mill", concurrency=1)

    def run(number: int) -> int:
        points.point(f"step {number}: not run")
        leave(outside, f"ran {number}")
        points.point(f"step {number}: run")
        return number * number

    def act(effect: Effect) -> str:
        points.point(f"effect {effect.key}: not done")
        leave(outside, f"effect {effect.key}")
        points.point(f"effect {effect.key}: done")
        return effect.key

    def look(effect: Effect) -> Happened | None:
        return Happened(effect.key) if f"effect {effect.key}" in lines(outside) else None

    @worker.handler("code")
    async def code(ctx: Context) -> int:
        total = 0
        for number in range(STEPS):
            total += await ctx.step("square", run, number)
            if number in EFFECTS:
                await ctx.effect(f"e{number}", act, verify=look)
        return total

    @worker.handler("blind")
    async def blind(ctx: Context) -> Any:
        return await ctx.effect("e", act)

    return worker


def leave(outside: Path, line: str) -> None:
    with outside.open("a") as file:
        file.write(f"{line}\n")


def lines(outside: Path) -> list[str]:
    return outside.read_text().splitlines() if outside.exists() else []


def work(url: str, outside: str, deadly: int | str) -> None:
    """Run every task, or die on the way. Writes the names of the points passed next to `outside`."""
    points.arm(deadly)
    points.mark_verbs()

    async def run_all() -> None:
        async with open_queue(url) as queue:
            await worker_on(Path(outside)).run(queue, until_idle=True)

    asyncio.run(run_all())
    Path(f"{outside}.points").write_text("\n".join(points.passed()))


def serve_until_dead(url: str, port: int, deadly: int | str) -> None:
    """Serve a queue, and print its address."""
    points.arm(deadly)
    points.mark_verbs()
    asyncio.run(serve(Options(store=url, port=port), _print_address))


def _print_address(where: str) -> None:
    sys.stdout.write(f"{where}\n")
    sys.stdout.flush()
