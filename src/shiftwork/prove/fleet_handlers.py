"""The handlers of the fleet's workers."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
from pathlib import Path

from shiftwork.prove.ledger import COST_USD, Act, Thought, accepted_acts
from shiftwork.prove.workload import PARENT, PLAIN, SOAK, STEPS, SUBTASKS, thoughts_of
from shiftwork.steps.model import Effect
from shiftwork.worker import Context, Fail, Happened, Worker

CONCURRENCY = 32
FAILURE_RATE = 0.2
"""The share of attempts with steps that fail by themselves, as model calls do."""


def worker(name: str, world: Path) -> Worker:
    made = Worker(name, concurrency=CONCURRENCY, stop_grace_sec=2)

    @made.handler(PLAIN)
    async def plain(context: Context) -> int:
        context.spent(cost_usd=COST_USD)
        return 1

    @made.handler(STEPS)
    async def steps(context: Context) -> int:
        await asyncio.sleep(random.uniform(0.0, 0.02))
        thought = Thought(context.id, _fence(context.token), "begun")
        await context.step("think", lambda: think(world, thought))
        write(thoughts_of(world), thought._replace(what="kept").line)
        if random.random() < FAILURE_RATE:
            raise Fail("crash", "the model stopped in mid-sentence")
        await context.effect("act", lambda effect: act(world, effect), verify=lambda effect: look(world, effect))
        context.spent(cost_usd=COST_USD)
        return 1

    @made.handler(PARENT)
    async def parent(context: Context) -> int:
        done = await context.spawn_and_wait([{"type": STEPS}] * SUBTASKS)
        context.spent(cost_usd=COST_USD)
        return sum(subtask.output for subtask in done)

    @made.handler(SOAK)
    async def soak(context: Context) -> int:  # noqa: ARG001  # every handler gets it
        return 1

    return made


def think(world: Path, thought: Thought) -> str:
    write(thoughts_of(world), thought.line)
    return thought.task


def act(world: Path, effect: Effect) -> None:
    write(world, Act("act", effect.key, _fence(effect.token)).line)


def look(world: Path, effect: Effect) -> Happened | None:
    """Ask the outside system whether the effect happened; it refuses acts of older claims from then on."""
    write(world, Act("look", effect.key, _fence(effect.token)).line)
    of_this = re.findall(rf"(?m)^\w+ {re.escape(effect.key)} \d+$", world.read_text())
    return Happened(None) if accepted_acts(map(Act.read, of_this))[effect.key] else None


def write(place: Path, line: str) -> None:
    """Append a line in one write, which is atomic however many processes write."""
    os.write(_opened(place), f"{line}\n".encode())


@functools.cache
def _opened(place: Path) -> int:
    return os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _fence(token: str) -> int:
    return int(token.rpartition(".")[2])
