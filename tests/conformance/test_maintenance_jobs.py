"""What the maintenance jobs find and fix."""

import asyncio
from typing import Any

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.engine.engine import Engine
from shiftwork.maintenance import loop
from shiftwork.maintenance.loop import run_once
from shiftwork.maintenance.poll import JobsSnapshot, poll
from shiftwork.model.errors import StoreFull, StoreLocked, VersionConflict
from shiftwork.store.store import Tx
from shiftwork.testing import MovedClock, pass_time


async def _spoil(queue: Queue, statement: str) -> None:
    """Change a row directly, as no verb does."""
    if queue.url.startswith("sqlite"):
        apsw.Connection(queue.url.removeprefix("sqlite:///")).execute(statement)
        return
    server = await asyncpg.connect(queue.url)
    await server.execute(statement)
    await server.close()


@pytest.mark.requirement("C-220")
async def test_stranded_task_is_repaired_every_ten_minutes(queue: Queue, clock: MovedClock) -> None:
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
    assert (await run_once(queue.engine))["stale"] == {"repaired": 1}
    assert (await queue.get(child.id)).status == "ready"
    (run,) = [job for job in await queue.control.maintenance() if job.name == "stale"]
    assert (run.last_run_at, run.due_at, run.runs) == (clock(), clock() + 600, 2)


@pytest.mark.requirement("C-171")
async def test_next_agent_gets_failure_history_with_the_assignment(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", retry={"jitter": False})
    (first,) = await queue.claim("one", start=True)
    await queue.fail(first.token, "crash", "boom")
    await pass_time(queue, clock, 60)
    (second,) = await queue.claim("two", start=True)
    assert [(f.agent, f.error) for f in second.task().failure_history] == [("one", "boom")]


@pytest.mark.requirement("C-057")
async def test_assignment_names_the_dependencies_of_its_task(queue: Queue) -> None:
    tasks = await queue.submit_many([{"key": "a", "type": "code"}, {"key": "b", "type": "test", "dependencies": ["a"]}])
    (first,) = await queue.claim("one", start=True)
    await queue.complete(first.token, 1)
    (second,) = await queue.claim("one", start=True)
    assert second.task().dependencies == [tasks[0].id]
    assert second.task() == await queue.get(tasks[1].id)


async def test_idle_maintenance_round_is_one_read(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process polls several times a second: one transaction per job was most of the load of an idle fleet."""
    await run_once(queue.engine)
    round_robin: list[str] = []
    real = loop._run_locked

    async def counted(tx: Tx, *, name: str, **rest: Any) -> Any:
        round_robin.append(name)
        return await real(tx, name=name, **rest)

    monkeypatch.setattr(loop, "_run_locked", counted)
    await run_once(queue.engine)
    clock.advance(0.25)
    await run_once(queue.engine)
    assert round_robin == []
    clock.advance(9.75)
    await run_once(queue.engine)
    assert round_robin == ["health", "preempt"]  # which no row can answer for, and which are set up nowhere here
    (promote,) = [job for job in await queue.control.maintenance() if job.name == "promote"]
    assert promote.last_run_at == clock()


async def test_maintenance_wait_reason_is_logged_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = iter([StoreFull("no room"), StoreFull("no room"), StoreLocked("busy"), None, StoreFull("no room")])
    over = asyncio.Event()

    async def refuse(engine: Engine) -> JobsSnapshot:
        found = next(errors, over)
        if found is over:
            over.set()
        if isinstance(found, Exception):
            raise found
        return await poll(engine)

    monkeypatch.setattr(loop, "poll", refuse)
    monkeypatch.setattr(loop, "TICK_SEC", 0.0)
    maintenance = asyncio.create_task(loop.run_forever(queue.engine))
    await asyncio.wait_for(over.wait(), 10)
    maintenance.cancel()
    await asyncio.gather(maintenance, return_exceptions=True)
    stated = [record.getMessage() for record in caplog.records if record.name == "shiftwork.maintenance"]
    heard = StoreFull("no room"), StoreLocked("busy"), StoreFull("no room")
    assert stated == [f"maintenance cannot poll: {error}" for error in heard]


@pytest.mark.parametrize("error", [VersionConflict("no"), KeyError("no")])
async def test_failing_maintenance_job_does_not_block_others(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def fail(*_: object) -> None:
        raise error

    first, last = "health", "preempt"
    monkeypatch.setitem(loop.JOBS, first, loop.JOBS[first]._replace(run=fail))
    maintenance = asyncio.create_task(loop.run_forever(queue.engine))
    async with asyncio.timeout(10):
        while last not in {job.name for job in await queue.control.maintenance()}:  # noqa: ASYNC110  # of the store
            await asyncio.sleep(0.01)
    maintenance.cancel()
    await asyncio.gather(maintenance, return_exceptions=True)
    assert [record.getMessage() for record in caplog.records if record.name == "shiftwork.maintenance"] == [
        f"{first} waits: {error}"
    ]
    with pytest.raises(type(error)):
        await run_once(queue.engine, force=True)
