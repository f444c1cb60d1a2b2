"""PgBouncer in transaction mode: the whole lifecycle of a task, and many at once."""

import asyncio
from collections.abc import Iterator
from urllib.parse import quote

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.model.errors import StoreUnsuitable
from shiftwork.store import postgres_sessions
from shiftwork.store.postgres_open import split_url
from tests.races.fleet import handles, hire, stranded, together
from tests.services import Databases
from tests.services.shared import Pooler


@pytest.fixture(params=["poll", "listen"])
def pooled_url(
    request: pytest.FixtureRequest, postgres: Databases, pgbouncer: Pooler, migrated_template: str
) -> Iterator[str]:
    """A queue behind the pooler; wake-ups by polling alone, or over a direct connection."""
    name = postgres.create_database(migrated_template)
    listen = f"&listen={quote(postgres.dsn(name), safe='')}" if request.param == "listen" else ""
    yield f"{pgbouncer.dsn(name)}?pgbouncer=true{listen}"
    postgres.drop_database(name)


async def test_task_completes_its_lifecycle_behind_a_pooler(pooled_url: str) -> None:
    async with Queue.open(pooled_url) as queue:
        await queue.settings.set("retry.strategy", "immediate")
        first, second = await queue.submit_many(
            [
                {"key": "a", "type": "code", "id": "first", "tags": ["x"], "idempotency_key": "k"},
                {"key": "b", "type": "code", "dependencies": ["a"], "priority": 10},
            ]
        )
        await hire(queue, "worker")
        (taken,) = await queue.claim("worker")
        await queue.start(taken.token)
        assert (await queue.heartbeat(taken.token, {"done": 0.5}, {"cost_usd": 0.1})).action == "continue"
        await queue.spawn(taken.token, [{"type": "docs"}])
        assert (await queue.fail(taken.token, "crash", "oops")).status == "ready"
        (again,) = await queue.claim("worker", start=True, types=["code"])
        await queue.complete(again.token, {"ok": True})
        assert (await queue.get(second.id)).status == "ready"
        await queue.control.pause()
        assert await queue.claim("worker") == []
        await queue.control.resume()
        await queue.cancel(second.id)
        await queue.tasks.rerun(first.id)
        await run_once(queue.engine, force=True)
        assert (await queue.status()).counts == {"completed": 1, "cancelled": 1, "ready": 2}
        events = (await queue.events()).events
        assert [event.seq for event in events] == sorted(event.seq for event in events)


async def test_fleet_works_behind_a_pooler(pooled_url: str) -> None:
    """More connections than the pooler has servers, each transaction possibly on another one."""
    async with handles(pooled_url, 6, pool_size=8) as queues:
        agents = [f"agent-{number}" for number in range(24)]
        await hire(queues[0], *agents)
        parents = await queues[0].submit_many([{"type": "code"}] * 60)

        async def submit(queue: Queue, number: int) -> None:
            await queue.submit(type="code", dependencies=[parents[number].id, parents[-number - 1].id])

        async def work(queue: Queue, agent: str) -> list[str]:
            done = []
            while taken := await queue.claim(agent, 2, start=True):
                for assignment in taken:
                    await queue.complete(assignment.token)
                    done.append(assignment.id)
            return done

        working = [work(queues[i % 6], agent) for i, agent in enumerate(agents)]
        submitting = [submit(queues[i % 6], i) for i in range(30)]
        await together(*submitting)
        done = [id_ for part in await together(*working) for id_ in part]
        done += await work(queues[0], agents[0])
        assert len(done) == len(set(done)) == 90
        assert await stranded(queues[0]) == []
        clocks = [queue.now() for queue in queues]
        assert max(clocks) - min(clocks) < 5
        assert [queue.engine.store.stall_detector.stalls for queue in queues] == [[]] * len(queues)


async def test_waiting_claim_behind_a_pooler_finds_work(pooled_url: str) -> None:
    """By its direct connection, or by the poll."""
    async with handles(pooled_url, 2) as (waiting, other):
        await waiting.settings.set("fallback_poll_sec", 0.2)
        claiming = asyncio.create_task(waiting.claim("worker", wait=20))
        task = await other.submit(type="code")
        assert [taken.id for taken in await claiming] == [task.id]


async def test_queue_is_created_through_a_pooler(pgbouncer: Pooler, postgres_dsn: str) -> None:
    name = postgres_dsn.rpartition("/")[2]
    async with Queue.open(f"{pgbouncer.dsn(name)}?pgbouncer=true") as queue:
        assert (await queue.submit(type="code")).status == "ready"


async def test_concurrent_opens_through_a_pooler_succeed(pgbouncer: Pooler, postgres_dsn: str) -> None:
    url = f"{pgbouncer.dsn(postgres_dsn.rpartition('/')[2])}?pgbouncer=true"
    queues = await together(*(Queue.open(url) for _ in range(12)))
    for queue in queues:
        await queue.close()


async def test_undeclared_pooler_is_refused_with_a_hint(pgbouncer: Pooler, postgres_dsn: str) -> None:
    with pytest.raises(StoreUnsuitable, match=r"add \?pgbouncer=true to the address"):
        await Queue.open(pgbouncer.dsn(postgres_dsn.rpartition("/")[2]))


async def test_process_stopped_in_a_transaction_behind_a_pooler_keeps_no_lock(
    pooled_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_sessions, "LOOK_EVERY_SEC", 0.2)
    address, _ = split_url(pooled_url)
    name = postgres_sessions.session_name(address)
    stopped = await asyncpg.connect(address, statement_cache_size=0, server_settings=name)
    async with Queue.open(pooled_url) as queue:
        task = await queue.submit(type="code")
        await stopped.execute("begin; select * from tasks for update")
        await stopped.prepare("select $1::text")
        await queue.cancel(task.id)
        assert (await queue.get(task.id)).status == "cancelled"
    stopped.terminate()
