"""What the duties find and mend."""

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.duties.runner import run_once
from shiftwork.testing import MovedClock, pass_time


async def _spoil(queue: Queue, statement: str) -> None:
    """What no verb does: change a row behind the queue's back."""
    if queue.url.startswith("sqlite"):
        apsw.Connection(queue.url.removeprefix("sqlite:///")).execute(statement)
        return
    server = await asyncpg.connect(queue.url)
    await server.execute(statement)
    await server.close()


@pytest.mark.requirement("C-220")
async def test_a_stranded_task_is_found_and_mended_every_ten_minutes(queue: Queue, clock: MovedClock) -> None:
    await run_once(queue.engine)
    parent = await queue.submit(type="code")
    child = await queue.submit(type="code", dependencies=[parent.id])
    (claim,) = await queue.claim("coder", start=True)
    await queue.complete(claim.token, 1)
    await _spoil(queue, "update tasks set status = 'pending', waiting = 1 where status = 'ready'")
    clock.advance(599)
    assert "stale" not in await run_once(queue.engine)
    assert (await queue.get(child.id)).status == "pending"
    clock.advance(1)
    assert (await run_once(queue.engine))["stale"] == {"mended": 1}
    assert (await queue.get(child.id)).status == "ready"
    (run,) = [duty for duty in await queue.duties() if duty["name"] == "stale"]
    assert (run["last_run_at"], run["due_at"], run["runs"]) == (clock(), clock() + 600, 2)


@pytest.mark.requirement("C-171")
async def test_the_next_agent_gets_the_history_with_the_assignment(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", retry={"jitter": False})
    (first,) = await queue.claim("one", start=True)
    await queue.fail(first.token, "crash", "boom")
    await pass_time(queue, clock, 60)
    (second,) = await queue.claim("two", start=True)
    assert [(f.agent, f.error) for f in second.task().failure_history] == [("one", "boom")]


@pytest.mark.requirement("C-057")
async def test_an_assignment_names_what_the_task_depended_on(queue: Queue) -> None:
    tasks = await queue.submit_many([{"key": "a", "type": "code"}, {"key": "b", "type": "test", "dependencies": ["a"]}])
    (first,) = await queue.claim("one", start=True)
    await queue.complete(first.token, 1)
    (second,) = await queue.claim("one", start=True)
    assert second.task().dependencies == [tasks[0].id]
    assert second.task() == await queue.get(tasks[1].id)
