"""A claim returns the task exactly as a read does, after any history."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from shiftwork import Queue
from shiftwork.model.task import NewTask
from shiftwork.testing import MovedClock, pass_time

EVERY: dict[str, Any] = {
    "type": "code",
    "key": "first",
    "id": "own-id",
    "idempotency_key": "once",
    "title": "a title",
    "tool_name": "hammer",
    "payload": {"n": 1},
    "spec": {"prompt": "what to do"},
    "output": {"validation": "json-schema", "validation_schema": {"type": "object"}},
    "priority": 11,
    "priority_boost_per_minute": 0.25,
    "deadline": 2_000_000_000.0,
    "run_at": 1_000_000_000.0,
    "delay": None,
    "expires_at": 2_000_000_000.0,
    "expires_in": None,
    "dependencies": [],
    "tags": ["a", "b"],
    "created_by": "ada",
    "max_attempts": 7,
    "timeout_sec": 90.0,
    "retry": {"strategy": "fixed", "initial_delay_sec": 5},
    "delivery": "at_most_once",
    "urgency": "normal",  # a task for one agent cannot be in a batch; tests/batches has the other
    "estimated_cost_usd": 0.5,
    "tree_budget_usd": 3.0,
    "target_agent_id": "second",
    "issue_id": "ISSUE-1",
    "serial_key": "one-at-a-time",
    "trigger_type": "manual",
    "trigger_comment_id": "c-1",
    "trigger_summary": "somebody asked",
    "session_id": "s-1",
    "work_dir": "work/here",
    "force_fresh_session": True,
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "settings": {"heartbeat_timeout_sec": 77},
}
"""A value that is not the default for each field that may be written; of two that say the same, for one."""

OWN = {"id", "external_id", "idempotency_key", "session_id", "work_dir", "force_fresh_session", "run_at", "expires_at"}
"""What a rerun has of its own, or none of."""

Story = Callable[[Queue, MovedClock], Awaitable[str]]


async def merged(queue: Queue, _clock: MovedClock) -> str:
    await queue.settings.set("idempotency.on_duplicate", "merge")
    made = await queue.submit(type="code", tags=["a"], idempotency_key="k", priority=60)
    assert (await queue.submit(type="code", tags=["b"], idempotency_key="k", priority=10)).duplicate
    return made.id


async def reviewed(queue: Queue, _clock: MovedClock) -> str:
    for key in ("max_attempts", "poison.min_agents", "poison.min_attempts"):
        await queue.settings.set(key, 1)
    task_id = (await queue.submit(type="code")).id
    (held,) = await queue.claim("first", start=True)
    await queue.fail(held.token, "crash", "boom")
    assert (await queue.get(task_id)).poison_pill
    await queue.dead_letters.review(task_id, "retry")
    return task_id


async def updated(queue: Queue, _clock: MovedClock) -> str:
    task_id = (await queue.submit(type="code", tags=["a"])).id
    await queue.tasks.update(task_id, {"priority": 7, "tags": ["b", "c"], "timeout_sec": 90})
    return task_id


async def rerun(queue: Queue, _clock: MovedClock) -> str:
    task_id = (await queue.submit(type="code", payload={"n": 1}, tags=["a"])).id
    (held,) = await queue.claim("first", start=True)
    await queue.complete(held.token, {"n": 2})
    return (await queue.tasks.rerun(task_id)).task_id


async def retried(queue: Queue, clock: MovedClock) -> str:
    task_id = (await queue.submit(type="code", payload={"n": 1})).id
    (held,) = await queue.claim("first", start=True)
    await queue.claims.progress(held.token, {"percent": 40})
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
async def test_claimed_task_equals_the_task_read(queue: Queue, clock: MovedClock, story: Story) -> None:
    task_id = await story(queue, clock)
    (claim,) = await queue.claim("second", types=["code"])
    handed, read = msgspec.to_builtins(claim.task()), msgspec.to_builtins(await queue.get(task_id))
    assert {name: (handed[name], read[name]) for name in read if handed[name] != read[name]} == {}


def as_written(task: dict[str, Any]) -> dict[str, Any]:
    """Return the submitted fields of a task that was read, without those that the queue added."""

    def part(read: Any, written: Any) -> Any:
        return {name: read.get(name) for name in written} if isinstance(written, dict) else read

    return {name: part(task[name], value) for name, value in EVERY.items() if name in task and name not in OWN}


async def test_every_written_field_is_read_assigned_and_rerun(queue: Queue) -> None:
    assert set(EVERY) == set(NewTask.__struct_fields__)
    task_id = (await queue.submit(**EVERY)).id
    read = msgspec.to_builtins(await queue.get(task_id))
    assert as_written(read) == {name: value for name, value in EVERY.items() if name in read and name not in OWN}
    (claim,) = await queue.claim("second", start=True)
    assert (read["run_at"], read["expires_at"]) == (EVERY["run_at"], EVERY["expires_at"])
    assert claim.task() == await queue.get(task_id)
    await queue.complete(claim.token, {})
    again = await queue.get((await queue.tasks.rerun(task_id)).task_id)
    assert as_written(msgspec.to_builtins(again)) == {**as_written(read), "trigger_type": "manual_rerun"}
