"""An agent that is going to be hurt: it thinks, keeps a step, acts outside once, and submits a result.

The outside world is two files: each act adds a line to one, each thought and each thought that is kept to the other.
Run as a module: WORKSPACE NAME WORLD, on the store that SHIFTWORK_STORE names.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

from shiftwork.prove.ledger import COST_USD, Thought
from shiftwork.steps.model import Effect
from shiftwork.worker import Context, Fail, Happened, Worker

CONCURRENCY = 4
SLIPS = 0.1
"""The share of attempts that fail by themselves, as calls of a model do."""


def build(world: Path, workspace: str, name: str) -> Worker:
    worker = Worker(name, concurrency=CONCURRENCY, workspace=workspace, stop_grace_sec=2)

    @worker.handler("prove")
    async def handle(context: Context) -> dict[str, Any]:
        number = context.payload["number"]
        await asyncio.sleep(random.uniform(0.0, 0.05))
        thought = Thought(context.id, int(context.token.rpartition(".")[2]), "begun")
        await context.step("think", lambda: think(world, thought))
        write(thoughts_of(world), thought._replace(what="kept").line)
        if random.random() < SLIPS:
            raise Fail("crash", "the model broke off in mid-sentence")
        await context.effect("act", lambda effect: act(world, effect), verify=lambda effect: happened(world, effect))
        await asyncio.sleep(random.uniform(0.0, 0.05))
        context.spent(cost_usd=COST_USD)
        return {"number": number}

    return worker


def thoughts_of(world: Path) -> Path:
    return world.with_name("thoughts")


def think(world: Path, thought: Thought) -> str:
    write(thoughts_of(world), thought.line)
    return thought.task


def act(world: Path, effect: Effect) -> None:
    write(world, effect.key)


def write(place: Path, line: str) -> None:
    """One line, written whole: the kernel adds it at the end, however many write."""
    file = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)


def happened(world: Path, effect: Effect) -> Happened | None:
    """Look outside, where an attempt before this one may have acted and then died."""
    return Happened(None) if world.exists() and effect.key in world.read_text().split("\n") else None


def main(workspace: str, name: str, world: str) -> None:
    asyncio.run(build(Path(world), workspace, name).run(os.environ["SHIFTWORK_STORE"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
