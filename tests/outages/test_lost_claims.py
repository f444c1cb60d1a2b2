"""Claims whose connection breaks during their commit: no task stays behind, whether the server had committed or not."""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import aiohttp
import asyncpg
import pytest

from shiftwork import Client, Queue
from tests.outages.relay import Relay, relay_to
from tests.server import processes
from tests.worker.steps import until

LOCK = 4711
Loss = Literal["rolled back", "committed"]
LOSSES = pytest.mark.parametrize("loss", ["rolled back", "committed"])


class Commits:
    """Stops every transaction that claims a task at its commit, until one is lost."""

    def __init__(self, connection: asyncpg.Connection, relay: Relay) -> None:
        self._connection = connection
        self._relay = relay

    async def hold(self) -> None:
        await self._connection.execute(
            "create function hold() returns trigger language plpgsql as"
            f" 'begin perform pg_advisory_xact_lock({LOCK}); return null; end';"
            "create constraint trigger held after update on tasks deferrable initially deferred"
            " for each row when (old.status = 'ready') execute function hold();"
            f"select pg_advisory_lock({LOCK})"
        )

    async def lose(self, loss: Loss) -> str:
        """Break the connection of the transaction that is stopped; returns its last statement."""
        await until(self._is_stopped)
        pid, statement = await self._stopped()
        if loss == "rolled back":
            await self._connection.execute("select pg_terminate_backend($1)", pid)
        else:
            self._relay.lose_answers()
        await self._connection.execute(f"select pg_advisory_unlock({LOCK})")
        if loss == "committed":
            await until(self._has_claimed)
            self._relay.hang_up()
        return statement

    async def _stopped(self) -> tuple[int, str]:
        """The session that waits, and its statement."""
        (row,) = await self._connection.fetch(WAITING)
        return row["pid"], row["query"]

    async def _is_stopped(self) -> bool:
        return bool(await self._connection.fetch(WAITING))

    async def _has_claimed(self) -> bool:
        return await self._connection.fetchval("select 1 from tasks where status in ('claimed', 'running')") is not None


WAITING = "select pid, query from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read again every second is read once: that would be a transaction of its own before the claim."""
    monkeypatch.setattr("shiftwork.settings.cache.FRESH_SEC", 600.0)
    monkeypatch.setattr("shiftwork.budgets.allocator.FRESH_SEC", 600.0)


@pytest.fixture
async def relayed(postgres_url: str) -> AsyncIterator[tuple[Relay, str]]:
    async with relay_to(postgres_url) as relayed:
        yield relayed


@pytest.fixture
async def commits(postgres_url: str, relayed: tuple[Relay, str]) -> AsyncIterator[Commits]:
    connection = await asyncpg.connect(postgres_url)
    yield Commits(connection, relayed[0])
    await connection.execute("drop function if exists hold() cascade")
    await connection.close()


@pytest.fixture
async def near(postgres_url: str) -> AsyncIterator[Queue]:
    """The queue over another connection, which is not lost."""
    async with Queue.open(postgres_url) as queue:
        await queue.agents.register(id="ada", max_concurrent_tasks=1)
        yield queue


async def verbs(queue: Queue, task_id: str) -> list[str]:
    return [event.verb for event in (await queue.tasks.history(task_id)).events]


@LOSSES
async def test_waiting_claim_lost_in_its_only_statement_is_made_again(
    near: Queue, commits: Commits, relayed: tuple[Relay, str], loss: Loss
) -> None:
    async with Queue.open(relayed[1]) as queue:
        await near.submit(type="code")
        (first,) = await queue.claim("ada", start=True)
        await queue.complete(first.token)  # what is known of agent and lane allows one statement
        await commits.hold()
        waiting = asyncio.create_task(queue.claim("ada", wait=25, start=True))
        task = await near.submit(type="code")
        assert (await commits.lose(loss)).startswith("with recursive walk(lane)")
        (held,) = await waiting
        assert held.id == task.id
        lost = ["claimed", "released"] if loss == "committed" else []
        assert await verbs(near, task.id) == ["submitted", *lost, "claimed"]
        assert (await queue.complete(held.token)).status == "completed"


@LOSSES
async def test_joined_claims_that_are_lost_are_made_again(
    near: Queue, commits: Commits, relayed: tuple[Relay, str], loss: Loss
) -> None:
    await near.agents.register(id="bob", max_concurrent_tasks=2)
    made = await near.submit_many([{"type": "code"}] * 4)
    async with Queue.open(relayed[1]) as queue:
        await queue.engine.settings_cache.get(queue.engine.store, queue.workspace)  # else they come one after the other
        await commits.hold()
        claiming = asyncio.gather(*(queue.claim(agent, start=True) for agent in ("ada", "bob", "bob")))
        assert (await commits.lose(loss)).startswith("commit")
        held = [each for claimed in await claiming for each in claimed]
        assert len({each.id for each in held}) == 3
        await queue.batch.complete([{"token": each.token} for each in held])
        assert (await near.status()).counts == {"completed": 3, "ready": len(made) - 3}


@LOSSES
async def test_claim_under_a_key_that_is_lost_is_answered_with_what_it_claimed(
    near: Queue, commits: Commits, relayed: tuple[Relay, str], loss: Loss
) -> None:
    async with await processes.start(relayed[1]) as serving, Client.open(serving.url) as client:
        await commits.hold()
        waiting = asyncio.create_task(client.claim("ada", wait=25))
        task = await near.submit(type="code")
        assert (await commits.lose(loss)).startswith("commit")
        (held,) = await waiting
        assert held.id == task.id
        assert await verbs(near, task.id) == ["submitted", "claimed"]
        assert (await client.start(held.token)).status == "running"
        await serving.stop()


@LOSSES
async def test_request_without_a_key_that_waits_is_answered_with_work(
    near: Queue, commits: Commits, relayed: tuple[Relay, str], loss: Loss
) -> None:
    async with await processes.start(relayed[1]) as serving, aiohttp.ClientSession() as http:
        await commits.hold()
        asking = asyncio.create_task(
            http.post(f"{serving.url}/api/tasks/claim", json={"agent_id": "ada", "wait_sec": 25})
        )
        task = await near.submit(type="code")
        await commits.lose(loss)
        answer = await asking
        assert answer.status == 200, await answer.text()
        assert [each["task"]["id"] for each in (await answer.json())["assignments"]] == [task.id]
        await serving.stop()


async def test_lost_claim_leaves_other_claims_of_its_agent_alone(
    near: Queue, commits: Commits, relayed: tuple[Relay, str]
) -> None:
    await near.agents.register(id="bob", max_concurrent_tasks=2)
    await near.submit(type="code")
    (other,) = await near.claim("bob", start=True)
    await near.submit(type="code")
    async with Queue.open(relayed[1]) as queue:
        await commits.hold()
        claiming = asyncio.create_task(queue.claim("bob", start=True))
        await commits.lose("committed")
        assert len(await claiming) == 1
    assert await verbs(near, other.id) == ["submitted", "claimed"]
    assert (await near.complete(other.token)).status == "completed"
