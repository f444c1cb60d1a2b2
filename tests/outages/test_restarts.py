"""The database server goes away under a running fleet and comes back: the fleet continues, and nothing is lost."""

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import aiohttp
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model.errors import OperationTimeout, ShiftworkError, StoreDamaged, StoreReadOnly, StoreUnavailable
from shiftwork.store import postgres_notify
from shiftwork.testing import MovedClock, pass_time
from tests.races.fleet import handles, hire, stranded
from tests.server import processes
from tests.services import Postgres
from tests.services.common import free_port
from tests.stores.stalling import given, impatient
from tests.worker.steps import until

ADA = {"agent_id": "ada"}
AWAY = (StoreUnavailable, StoreReadOnly, OperationTimeout)


class Fleet:
    """Producers and workers that continue despite errors, and remember what was acknowledged."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.completed: list[str] = []
        self.ending = False
        self._steps = asyncio.Condition()

    async def step(self) -> None:
        async with self._steps:
            self._steps.notify_all()

    async def until(self, more: int) -> None:
        """Wait until this many more completions were acknowledged."""
        enough = len(self.completed) + more
        async with self._steps:
            await asyncio.wait_for(self._steps.wait_for(lambda: len(self.completed) >= enough), 60)

    async def produce(self, queue: Queue) -> None:
        while not self.ending:
            try:
                made = await queue.submit_many([{"type": "code"}, {"type": "code"}])
                child = await queue.submit(type="code", dependencies=[task.id for task in made])
                self.submitted += [child.id, *(task.id for task in made)]
            except AWAY:
                continue

    async def work(self, queue: Queue, agent: str) -> None:
        while not self.ending:
            try:
                for assignment in await queue.claim(agent, 4, start=True):
                    await queue.complete(assignment.token)
                    self.completed.append(assignment.id)
                    await self.step()
            except AWAY:
                continue


@pytest.mark.parametrize("end", ["fast", "immediate", "kill9"])
async def test_fleet_survives_a_database_restart(server: Postgres, url: str, end: str) -> None:
    how: dict[str, Callable[[], None]] = {
        "fast": lambda: server.stop("fast"),
        "immediate": lambda: server.stop("immediate"),
        "kill9": server.kill9,
    }
    fleet = Fleet()
    async with handles(url, 3) as queues:
        await hire(queues[0], "a", "b")
        loops = [
            asyncio.create_task(fleet.produce(queues[0])),
            asyncio.create_task(fleet.work(queues[1], "a")),
            asyncio.create_task(fleet.work(queues[2], "b")),
        ]
        await fleet.until(20)
        await asyncio.to_thread(how[end])
        await asyncio.to_thread(server.start_again)
        await fleet.until(20)
        fleet.ending = True
        await asyncio.gather(*loops)
        await check(queues[0], fleet)


async def check(queue: Queue, fleet: Fleet) -> None:
    seen_events: Counter[tuple[str, str | None]] = Counter()
    after = 0
    while True:
        news = await queue.events(after)
        events, after = news.events, news.next
        seen_events.update((event.verb, event.task_id) for event in events)
        if not events:
            break
    tasks = {id_: (await queue.get(id_)).status for id_ in fleet.submitted}
    assert len(tasks) == len(fleet.submitted)
    assert {tasks.get(id_, "completed") for id_ in fleet.completed} == {"completed"}
    assert {times for (verb, _), times in seen_events.items() if verb == "completed"} == {1}
    counts = (await queue.status()).counts
    assert sum(counts.values()) == sum(n for (verb, _), n in seen_events.items() if verb == "submitted")
    assert await stranded(queue) == []


async def test_store_that_stays_down_is_reported_as_unavailable(server: Postgres, url: str) -> None:
    async with Queue.open(url) as queue:
        kept = await queue.submit(type="code")
        await asyncio.to_thread(server.stop)
        for call in (queue.submit(type="code"), queue.claim("worker"), queue.get(kept.id)):
            with impatient(), pytest.raises(StoreUnavailable):
                await asyncio.wait_for(call, 20)
        await asyncio.to_thread(server.start_again)
        assert [taken.id for taken in await queue.claim("worker")] == [kept.id]


async def test_frozen_server_does_not_block_callers(server: Postgres, url: str) -> None:
    """Frozen, not dead: connections stay open and nothing is answered."""
    async with Queue.open(url) as queue:
        frozen = processes_of(server)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            with given(queue.engine.store, 0.5), pytest.raises(OperationTimeout):
                await asyncio.wait_for(queue.submit(type="code"), 20)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        assert (await queue.status()).counts == {}
        assert (await queue.submit(type="code")).status == "ready"


def processes_of(server: Postgres) -> list[int]:
    assert server._process is not None
    parent = server._process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *map(int, children)]


async def test_timeout_during_the_commit_is_reported_as_unknown(url: str) -> None:
    """The commit waits in a trigger; the caller learns that the outcome is unknown, and can find the task."""
    async with Queue.open(url) as queue:
        await queue.submit(type="code")
        await queue.engine.store.run(make_commits_slow)
        with given(queue.engine.store, 1), pytest.raises(ShiftworkError) as refused:
            await queue.submit(type="docs")
        assert refused.value.code == "store_unavailable"
        assert "unknown whether this was done" in refused.value.hint


async def make_commits_slow(tx: object) -> None:
    await tx._connection.execute(  # type: ignore[attr-defined]  # a trigger of the database's owner
        "create function wait() returns trigger language plpgsql as 'begin perform pg_sleep(10); return null; end';"
        "create constraint trigger slow after insert on bodies deferrable initially deferred"
        " for each row execute function wait()"
    )


async def test_broken_page_is_reported_as_damage(server: Postgres, url: str) -> None:
    """Neither an outage, which is retried, nor an error of the caller."""
    async with Queue.open(url) as queue:
        kept = await queue.submit(type="code")
    connection = await asyncpg.connect(url)
    bodies = server.sandbox.data / await connection.fetchval("select pg_relation_filepath('bodies')")
    await connection.close()
    await asyncio.to_thread(server.stop)
    with bodies.open("r+b") as file:
        file.write(b"\xaa" * 64)
    await asyncio.to_thread(server.start_again)
    async with Queue.open(url) as queue:
        for call in (queue.get(kept.id), queue.claim("worker")):
            with pytest.raises(StoreDamaged, match="invalid page") as found:
                await call
            assert "restore a backup" in found.value.hint
        assert (await queue.status()).counts == {"ready": 1}  # what is whole can be read


async def test_reclaim_is_suspended_after_an_outage(server: Postgres, url: str) -> None:
    """While the server was down, no one could send heartbeats, so silence proves nothing until everyone had time to."""
    clock = MovedClock()
    async with Queue.open(url, clock=clock) as queue:
        task = await queue.submit(type="code")
        (taken,) = await queue.claim("worker", start=True)
        await asyncio.to_thread(server.stop)
        clock.advance(300)
        with impatient(), pytest.raises(StoreUnavailable):
            await queue.heartbeat(taken.token)
        await asyncio.to_thread(server.start_again)
        await pass_time(queue, clock, 1)
        assert (await queue.get(task.id)).status == "running"
        await pass_time(queue, clock, 88)
        assert (await queue.get(task.id)).status == "running"
        await pass_time(queue, clock, 2)
        assert (await queue.get(task.id)).status == "retrying"


async def test_worker_sending_heartbeat_after_the_outage_keeps_its_task(server: Postgres, url: str) -> None:
    clock = MovedClock()
    async with Queue.open(url, clock=clock) as queue:
        task = await queue.submit(type="code", timeout_sec=86_400)
        (taken,) = await queue.claim("worker", start=True)
        await asyncio.to_thread(server.kill9)
        clock.advance(300)
        with impatient(), pytest.raises(StoreUnavailable):
            await queue.heartbeat(taken.token)
        await asyncio.to_thread(server.start_again)
        await pass_time(queue, clock, 30)
        assert (await queue.heartbeat(taken.token)).action == "continue"
        await pass_time(queue, clock, 75)
        assert (await queue.get(task.id)).status == "running"


async def test_waiting_claim_is_woken_after_the_server_returned(server: Postgres, url: str) -> None:
    async with handles(url, 2) as (waiting, other):
        claiming = asyncio.create_task(waiting.claim("worker", wait=25))
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start_again)
        task = await other.submit(type="code")
        assert [taken.id for taken in await claiming] == [task.id]


async def test_lost_and_restored_listening_is_logged_once(
    server: Postgres, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres_notify, "LISTEN_AGAIN_SEC", 0.01)
    monkeypatch.setattr(postgres_notify, "LISTEN_AGAIN_MAX_SEC", 0.02)
    caplog.set_level("INFO", "shiftwork.store")

    def said() -> list[str]:
        logged = [record.getMessage() for record in caplog.records if "listening for wake-ups" in record.getMessage()]
        return [line.partition(" (")[0] for line in logged]

    async with Queue.open(url) as queue:
        claiming = asyncio.create_task(queue.claim("worker", wait=25))
        await until(lambda: listens(url))
        for _ in range(2):
            caplog.clear()
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start_again)
            await until(lambda: len(said()) >= 2)
            assert said() == ["not listening for wake-ups", "listening for wake-ups again"]
        await queue.submit(type="code")
        assert len(await claiming) == 1


async def listens(url: str) -> bool:
    """Whether any session of this database waits for notices."""
    connection = await asyncpg.connect(url)
    try:
        asked = "select 1 from pg_stat_activity where query ilike 'listen %' and datname = current_database()"
        return await connection.fetchval(asked) is not None
    finally:
        await connection.close()


async def test_listener_reconnects_with_growing_pauses(postgres_url: str) -> None:
    tried: list[float] = []

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tried.append(time.monotonic())
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as dead:
        port = dead.sockets[0].getsockname()[1]
        listen = quote(f"postgresql://postgres@127.0.0.1:{port}/queue?sslmode=disable", safe="")
        mark = "&" if "?" in postgres_url else "?"
        async with Queue.open(f"{postgres_url}{mark}listen={listen}") as queue:
            claiming = asyncio.create_task(queue.claim("worker", wait=25))
            await until(lambda: len(tried) >= 4)
            claiming.cancel()
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert all(pause >= least for pause, least in zip(pauses, (0.25, 0.5, 1), strict=False)), pauses


async def test_server_without_its_database_logs_no_tracebacks(server: Postgres, url: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    async with await processes.start(url, "--log-file", str(log)) as serving:
        async with aiohttp.ClientSession() as http:
            asking = asyncio.create_task(http.post(f"{serving.url}/api/tasks/claim", json={**ADA, "wait_sec": 25}))
            await until(lambda: listens(url))
            await asyncio.to_thread(server.stop)
            await until(lambda: "not listening for wake-ups" in log.read_text())
            await asyncio.to_thread(server.start_again)
            await until(lambda: "listening for wake-ups again" in log.read_text())
            await http.post(f"{serving.url}/api/tasks", json={"type": "code"})
            answer = await asking
            assert answer.status == 200, await answer.text()
        await serving.stop()
    assert "Traceback" not in log.read_text()


async def test_first_of_several_hosts_can_be_dead(server: Postgres, url: str) -> None:
    dead = f"127.0.0.1:{free_port()}"
    several = url.replace("@", f"@{dead},")
    async with Queue.open(several) as queue:
        await queue.submit(type="code")
        assert len(await queue.claim("worker", wait=1)) == 1


async def test_dead_address_is_reported_as_unavailable_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await Queue.open(f"postgresql://postgres@127.0.0.1:{free_port()}/queue")


async def test_submit_with_a_broken_connection_is_not_repeated(postgres_url: str) -> None:
    """It is one statement and may have succeeded: repeating it could submit twice, so the caller must check."""
    other = await asyncpg.connect(postgres_url)
    async with Queue.open(postgres_url) as queue:
        await queue.submit(type="code")
        await other.execute("begin; lock table bodies in access exclusive mode")
        submitting = asyncio.create_task(queue.submit(type="code"))
        waiting = "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"

        async def waits() -> bool:
            return await other.fetchval(waiting) is not None

        await until(waits)
        await other.execute("select pg_terminate_backend($1)", await other.fetchval(waiting))
        with pytest.raises(StoreUnavailable) as refused:
            await submitting
        assert "unknown whether this was done" in refused.value.hint
        await other.execute("rollback")
        assert await other.fetchval("select count(*) from tasks") == 1
    await other.close()
