"""What the fleet works on: plain tasks, tasks with steps and effects, and parents that wait for subtasks.

The outside world is two files: `world` has a line for each look at it and each act, `thoughts` one for each step that
was begun or kept.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
from pathlib import Path
from typing import Any

from shiftwork.prove.ledger import COST_USD, Act, Thought, accepted_acts
from shiftwork.steps.model import Effect
from shiftwork.worker import Context, Fail, Happened, Worker

PLAIN, STEPS, PARENT, PROBE, SOAK = "plain", "steps", "parent", "probe", "soak"
SUBTASKS = 2
CONCURRENCY = 32
SLIPS = 0.2
"""The share of attempts with steps that fail by themselves, as calls of a model do."""

TREE_BUDGET_USD = 5.0


def type_of(number: int) -> str:
    """One in two hundred is a parent, one in forty has a step and an effect: these cost as much as many plain tasks."""
    return PARENT if number % 200 == 0 else STEPS if number % 40 == 0 else PLAIN


def task(number: int, key: str) -> dict[str, Any]:
    budget = {"tree_budget_usd": TREE_BUDGET_USD} if type_of(number) == PARENT else {}
    return {"type": type_of(number), "payload": {"number": number}, "idempotency_key": key, **budget}


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
        if random.random() < SLIPS:
            raise Fail("crash", "the model broke off in mid-sentence")
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


def thoughts_of(world: Path) -> Path:
    return world.with_name("thoughts")


def think(world: Path, thought: Thought) -> str:
    write(thoughts_of(world), thought.line)
    return thought.task


def act(world: Path, effect: Effect) -> None:
    write(world, Act("act", effect.key, _fence(effect.token)).line)


def look(world: Path, effect: Effect) -> Happened | None:
    """Ask the outside, which refuses every act of an older claim from then on."""
    write(world, Act("look", effect.key, _fence(effect.token)).line)
    of_this = re.findall(rf"(?m)^\w+ {re.escape(effect.key)} \d+$", world.read_text())
    return Happened(None) if accepted_acts(map(Act.read, of_this))[effect.key] else None


def write(place: Path, line: str) -> None:
    """One line, written whole: the kernel adds it at the end, however many write."""
    os.write(_opened(place), f"{line}\n".encode())


@functools.cache
def _opened(place: Path) -> int:
    return os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _fence(token: str) -> int:
    return int(token.rpartition(".")[2])
