"""A flood of urgent work, nine tasks to one, on a moved clock: records when each task is handed out."""

import math
from typing import NamedTuple

from shiftwork import Completion, Queue
from shiftwork.testing import MovedClock, pass_time

MINUTE = 60.0
CAPACITY = 9
"""Tasks done each minute, while ten come: nine urgent ones and one that is not. So the queue is never empty."""


class Handed(NamedTuple):
    """A task that was handed out, with the minutes of its submission and its claim."""

    came: int
    went: int
    urgent: bool


async def soak(
    queue: Queue, clock: MovedClock, minutes: int, priorities: tuple[float, float], **fields: object
) -> list[Handed]:
    """Flood the queue for this long, nine to one, and return all tasks in the order of their claims."""
    await queue.agents.register(id="server", max_concurrent_tasks=1000)
    handed: list[Handed] = []
    for minute in range(minutes):
        tasks = [{"type": "code", "priority": priorities[0]}] * CAPACITY + [{"type": "code", "priority": priorities[1]}]
        await queue.submit_many(
            [{**task, "payload": {"came": minute, "n": n}, **fields} for n, task in enumerate(tasks)]
        )
        taken = await queue.claim("server", CAPACITY, start=True)
        handed += [Handed(each.payload["came"], minute, urgent=each.task().priority == priorities[0]) for each in taken]
        await queue.batch.complete([Completion(token=each.token) for each in taken])
        await pass_time(queue, clock, MINUTE)
    return handed


def gets_out_at(came: int, gap: float, rate: float) -> int:
    """By the formula of ageing: `priority + rate * came` is what orders two tasks forever.

    A task goes after the urgent ones that came less than `gap / rate` minutes later, and after those like it that came
    before it; this many tasks are done in this many minutes.
    """
    ahead = CAPACITY * math.ceil(came + gap / rate) + came
    return ahead // CAPACITY
