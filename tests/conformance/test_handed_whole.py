"""A claim hands over the task as anybody reads it: every field is the same, whatever happened to it before."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time

Story = Callable[[Queue, MovedClock], Awaitable[str]]


async def merged(queue: Queue, _clock: MovedClock) -> str:
    await queue.set_setting("idempotency.on_duplicate", "merge")
    made = await queue.submit(type="code", tags=["a"], idempotency_key="k", priority=60)
    assert (await queue.submit(type="code", tags=["b"], idempotency_key="k", priority=10)).duplicate
    return made.id


async def reviewed(queue: Queue, _clock: MovedClock) -> str:
    for key in ("max_attempts", "poison.min_agents", "poison.min_attempts"):
        await queue.set_setting(key, 1)
    task_id = (await queue.submit(type="code")).id
    (held,) = await queue.claim("first", start=True)
    await queue.fail(held.token, "crash", "boom")
    assert (await queue.get(task_id)).poison_pill
    await queue.review(task_id, "retry")
    return task_id


async def updated(queue: Queue, _clock: MovedClock) -> str:
    task_id = (await queue.submit(type="code", tags=["a"])).id
    await queue.update(task_id, {"priority": 7, "tags": ["b", "c"], "timeout_sec": 90})
    return task_id


async def rerun(queue: Queue, _clock: MovedClock) -> str:
    task_id = (await queue.submit(type="code", payload={"n": 1}, tags=["a"])).id
    (held,) = await queue.claim("first", start=True)
    await queue.complete(held.token, {"n": 2})
    return (await queue.rerun(task_id)).task_id


async def retried(queue: Queue, clock: MovedClock) -> str:
    task_id = (await queue.submit(type="code", payload={"n": 1})).id
    (held,) = await queue.claim("first", start=True)
    await queue.progress(held.token, {"percent": 40})
    await queue.fail(held.token, "crash", "boom")
    await pass_time(queue, clock, 3600)
    return task_id


async def freed(queue: Queue, _clock: MovedClock) -> str:
    parent = await queue.submit(type="plan")
    task_id = (await queue.submit(type="code", dependencies=[parent.id])).id
    (held,) = await queue.claim("first", start=True)
    await queue.complete(held.token, {"n": 2})
    return task_id


@pytest.mark.parametrize("story", [merged, reviewed, updated, rerun, retried, freed], ids=lambda story: story.__name__)
async def test_a_claimed_task_is_told_as_it_is_read(queue: Queue, clock: MovedClock, story: Story) -> None:
    task_id = await story(queue, clock)
    (claim,) = await queue.claim("second", types=["code"])
    handed, read = msgspec.to_builtins(claim.task()), msgspec.to_builtins(await queue.get(task_id))
    assert {name: (handed[name], read[name]) for name in read if handed[name] != read[name]} == {}
