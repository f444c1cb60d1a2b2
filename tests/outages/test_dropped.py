"""A network that drops connections silently: they are detected and replaced, and wake-ups resume."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from shiftwork import Queue
from shiftwork.model.errors import OperationTimeout, StoreUnavailable
from shiftwork.store import postgres_sessions
from shiftwork.store.postgres_sessions import Session
from tests.outages.relay import Relay, relay_to
from tests.stores.stalling import given, impatient
from tests.worker.steps import until


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_sessions, "RESTED_SEC", 0.1)
    monkeypatch.setattr(postgres_sessions, "ANSWER_SEC", 0.3)


@pytest.fixture
async def far(postgres_url: str) -> AsyncIterator[tuple[Queue, Relay]]:
    """A queue behind such a network."""
    async with relay_to(postgres_url) as (relay, url), await Queue.open(url) as queue:
        yield queue, relay


async def rest() -> None:
    """Idle for longer than a connection is used without a check."""
    await asyncio.sleep(2 * postgres_sessions.RESTED_SEC)


async def test_call_after_a_silent_drop_uses_a_new_connection(far: tuple[Queue, Relay]) -> None:
    queue, relay = far
    await queue.submit_many([{"type": "code"}] * 3)
    relay.drop()
    await rest()
    assert (await queue.submit(type="code")).status == "ready"
    relay.drop()
    await rest()
    assert len(await queue.claim("worker")) == 1


async def test_many_calls_after_a_silent_drop_succeed(far: tuple[Queue, Relay]) -> None:
    queue, relay = far
    await asyncio.gather(*(queue.submit(type="code", priority=n) for n in range(30)))
    relay.drop()
    await rest()
    made = (await queue.tasks.list()).tasks
    found = await asyncio.gather(*(queue.get(task.id) for task in made))
    assert len({task.id for task in found}) == 30


async def test_waiting_claim_is_woken_after_a_silent_drop(far: tuple[Queue, Relay], postgres_url: str) -> None:
    queue, relay = far
    waiting = asyncio.create_task(queue.claim("worker", wait=25))
    await until(lambda: relay.carried >= 2)  # one that listens, one that looks
    await rest()
    relay.drop()
    await until(lambda: relay.carried >= 1)  # listening again
    async with Queue.open(postgres_url) as near:
        made = await near.submit(type="code")
        assert [taken.id for taken in await asyncio.wait_for(waiting, 15)] == [made.id]


async def test_submit_after_a_silent_drop_wakes_others(far: tuple[Queue, Relay], postgres_url: str) -> None:
    queue, relay = far
    async with Queue.open(postgres_url) as near:
        for number in range(3):
            waiting = asyncio.create_task(near.claim(f"worker-{number}", wait=25))
            made = await queue.submit(type="code")
            assert [taken.id for taken in await asyncio.wait_for(waiting, 15)] == [made.id]
            relay.drop()
            await rest()


async def test_call_cut_off_in_the_middle_ends_at_its_time_limit(
    far: tuple[Queue, Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the call would wait until the driver closes the connection."""
    monkeypatch.setattr(postgres_sessions, "RESTED_SEC", 60)
    queue, relay = far
    for call in (lambda: queue.submit(type="code"), lambda: queue.claim("worker")):
        await queue.submit(type="code")  # with settings that are known, the next is one statement
        relay.drop()
        with given(queue.engine.store, 0.5), pytest.raises((StoreUnavailable, OperationTimeout)):
            await asyncio.wait_for(call(), 20)
        assert (await queue.submit(type="code")).status == "ready"


async def test_call_cut_off_in_the_middle_is_retried_before_its_time_limit(
    far: tuple[Queue, Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server and the client wait for each other, since a message was dropped."""
    monkeypatch.setattr(postgres_sessions, "RESTED_SEC", 60)  # it is not asked first
    monkeypatch.setattr(postgres_sessions, "LOOK_EVERY_SEC", 0.5)
    queue, relay = far
    made = await queue.submit_many([{"type": "code", "dependencies": ["none"]}] * 2)
    with given(queue.engine.store, 600):
        for task in made:
            relay.drop()
            assert (await asyncio.wait_for(queue.cancel(task.id), 30)).status == "cancelled"


async def test_call_cut_off_in_its_only_statement_reports_an_unknown_outcome_before_its_time_limit(
    far: tuple[Queue, Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_sessions, "RESTED_SEC", 60)
    monkeypatch.setattr(postgres_sessions, "LOOK_EVERY_SEC", 0.5)
    queue, relay = far
    await queue.submit(type="code")  # with settings that are known, the next is one statement
    relay.drop()
    with given(queue.engine.store, 600), pytest.raises(StoreUnavailable, match="during the commit"):
        await asyncio.wait_for(queue.submit(type="code"), 30)
    assert (await queue.submit(type="code")).status == "ready"


async def test_dropped_connections_leave_no_pending_tasks(
    far: tuple[Queue, Relay], closings: list[asyncio.Task[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    queue, relay = far
    task = await queue.submit(type="code")
    await asyncio.gather(*(queue.get(task.id) for _ in range(30)))
    relay.drop()
    await rest()
    await queue.get(task.id)  # finds out about one, and the others are not trusted
    await asyncio.gather(*(queue.get(task.id) for _ in range(30)))
    assert closings
    await until(lambda: all(closing.done() for closing in closings))
    closings.clear()
    gc.collect()  # who ended with an exception that no one asked for complains here
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@pytest.fixture
def closings(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Task[Any]]:
    """Record the tasks that close unresponsive connections, with a short timeout."""
    monkeypatch.setattr(postgres_sessions, "CLOSE_SEC", 0.1)
    seen: list[asyncio.Task[Any]] = []
    close = Session.close

    async def noted(self: Session, *, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as the driver has it
        if (task := asyncio.current_task()) is not None:
            seen.append(task)
        await close(self, timeout=timeout)

    monkeypatch.setattr(Session, "close", noted)
    return seen


async def test_unreachable_network_is_reported_as_unavailable(far: tuple[Queue, Relay]) -> None:
    queue, relay = far
    relay.silent = True
    relay.drop()
    await rest()
    with impatient(), given(queue.engine.store, 3), pytest.raises((StoreUnavailable, OperationTimeout)):
        await queue.submit(type="code")
    relay.silent = False
    assert (await queue.submit(type="code")).status == "ready"


async def test_silent_host_does_not_hide_the_next_one(postgres_url: str) -> None:
    """The first host has no network; the driver alone would wait for it until the timeout."""
    async with relay_to(postgres_url) as (relay, silent):
        relay.silent = True
        first, second = urlsplit(silent), urlsplit(postgres_url)
        both = urlunsplit(first._replace(netloc=f"{first.netloc},{second.hostname}:{second.port}"))
        async with Queue.open(both) as queue:
            assert (await queue.submit(type="code")).status == "ready"
