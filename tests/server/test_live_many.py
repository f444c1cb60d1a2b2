"""Many subscribers, many writers, slow readers and a store outage: each event is sent once."""

import asyncio
import random
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from shiftwork import Queue
from shiftwork.engine import event_log
from shiftwork.server import hub, sockets
from shiftwork.server.routes import live
from shiftwork.store.store import Store, Tx
from tests.races.fleet import handles
from tests.server.crowd import send_to_subscribers
from tests.server.running import Running, running
from tests.server.watching import PATIENCE_SEC, follow, watch
from tests.services import Postgres
from tests.worker.steps import until

WRITERS, EACH = 8, 40


class Undone(Exception):
    """Rolls the writer's transaction back."""


def row(writer: int, number: int) -> tuple[object, ...]:
    return (0.0, "default", None, None, "counted", None, f"agent:{writer}", None, number, None, None)


async def dawdle(writer: int, number: int, delay: float, tx: Tx, *, gives_up: bool) -> None:
    await tx.insert("insert_events", [row(writer, number)])
    await tx.one("last_event")  # inserts are written with whatever comes next
    if delay:
        await asyncio.sleep(delay)
    if gives_up:
        raise Undone


class Writers:
    """Writers that pause between their event number and their commit, if the store allows it; some roll back."""

    def __init__(self, store_url: str) -> None:
        self._delays = [0.0, 0.0, 0.01, 0.05] if store_url.startswith("postgresql") else [0.0]
        self._chance = random.Random(7)
        self.written: set[tuple[int, int]] = set()

    async def write(self, queue: Queue, writer: int) -> None:
        for number in range(EACH):
            gives_up = self._chance.random() < 0.2
            try:
                verb = partial(dawdle, writer, number, self._chance.choice(self._delays), gives_up=gives_up)
                await queue.engine.store.run(verb)
                self.written.add((writer, number))
            except Undone:
                continue


class Seen:
    """The events that one subscriber received over all its connections."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.cursor = "0"

    def take(self, message: dict[str, Any]) -> bool:
        """False once the last event has come."""
        self.cursor = message["cursor"]
        if message["event"] == "ended":
            return False
        self.told.append((int(message["actor"].removeprefix("agent:")), message["fence"]))
        return True

    def check(self, written: set[tuple[int, int]]) -> None:
        assert len(self.told) == len(written)
        assert set(self.told) == written
        for writer in range(WRITERS):
            numbers = [number for who, number in self.told if who == writer]
            assert numbers == sorted(numbers)


async def steady(api: Running) -> Seen:
    seen = Seen()
    async with watch(api.http, api.url, "?after=0&verb=counted,ended") as client:
        while seen.take(await client.message()):
            pass
    return seen


async def restless(api: Running, chance: random.Random) -> Seen:
    """Reconnect after every few events, by WebSocket or server-sent events."""
    seen = Seen()
    while True:
        few, lines = chance.randint(1, 40), chance.random() < 0.5
        query = f"?after={seen.cursor}&verb=counted,ended"
        way: Any = follow(api.http, api.url, query) if lines else watch(api.http, api.url, query)
        async with way as client:
            for _ in range(few):
                if not seen.take(await (client.event() if lines else client.message())):
                    return seen


async def test_each_event_is_sent_once_during_concurrent_and_rolled_back_writes(store_url: str) -> None:
    writers = Writers(store_url)
    async with running(store_url) as api, handles(store_url, 4) as queues:
        chances = [random.Random(seed) for seed in range(4)]
        watching = [
            *(asyncio.create_task(steady(api)) for _ in range(4)),
            *(asyncio.create_task(restless(api, chance)) for chance in chances),
        ]
        await until(lambda: api.state.hub.listeners >= 4)
        await asyncio.gather(*(writers.write(queues[n % 4], n) for n in range(WRITERS)))
        late = asyncio.create_task(steady(api))
        await queues[0].engine.store.run(
            lambda tx: tx.insert("insert_events", [(0.0, "default", None, None, "ended", *row(0, 0)[5:])])
        )
        assert len(writers.written) > 200
        for seen in await asyncio.gather(*watching, late):
            seen.check(writers.written)


async def test_cursor_now_is_behind_uncommitted_events(postgres_dsn: str) -> None:
    """A subscriber that got `now` misses nothing committed afterwards, whatever its number."""
    async with running(postgres_dsn) as api, handles(postgres_dsn, 2) as (slow, quick):
        has_number, may_commit = asyncio.Event(), asyncio.Event()

        async def wait(tx: Tx) -> None:
            await tx.insert("insert_events", [row(1, 1)])
            await tx.one("last_event")
            has_number.set()
            await may_commit.wait()

        writing = asyncio.create_task(slow.engine.store.run(wait))
        await has_number.wait()
        await quick.submit(type="write")
        page = asyncio.create_task(api.get("/api/events?after=now"))
        done, _ = await asyncio.wait([page], timeout=0.1)
        assert not done
        may_commit.set()
        await writing
        now = (await page)["next"]
        assert (await api.get(f"/api/events?after={now}"))["events"] == []
        assert len((await api.get("/api/events"))["events"]) == 2


async def test_event_during_reader_start_is_sent_at_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = asyncio.Event()

    async def newest(store: Store) -> int:
        await looked.wait()
        await queue.submit(type="write")
        return await event_log.newest(store)

    monkeypatch.setattr(hub, "event_log", SimpleNamespace(read=event_log.read, newest=newest))
    reader = hub.Hub(queue.engine.store, asyncio.Event())
    async with reader.listen() as listener:
        assert await reader.after(0, "default") == ([], 0)
        looked.set()
        async with asyncio.timeout(PATIENCE_SEC):
            await listener.woken.wait()
        entries, upto = await reader.after(0, "default")
        assert (len(entries), upto) == (1, 1)


async def test_hundreds_of_subscribers_get_every_event_once_in_order(api: Running) -> None:
    """The full size, 500 subscribers and 10,000 events, is run by `make bench`."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        reply = await send_to_subscribers(http, api.url, subscribers=500, events=120)
        assert reply.events == 120
        reply = await send_to_subscribers(http, api.url, subscribers=10, events=3000)
        assert reply.events == 3000
    assert api.state.hub.kept <= hub.MAX_KEPT


@contextmanager
def never_reading(url: str) -> Iterator[socket.socket]:
    """A client that subscribes to everything and never reads."""
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect((host, int(port)))
        raw.sendall(
            f"GET /ws?after=0 HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {b64encode(bytes(16)).decode()}\r\n\r\n".encode()
        )
        yield raw


async def chatter(api: Running, count: int) -> None:
    """Send this many long messages: more than the sockets can buffer."""
    made = await api.post("/api/tasks", {"type": "write"})
    (held,) = (await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True}))["assignments"]
    for start in range(0, count, 20):
        stated = [{"token": held["token"], "kind": "text", "text": f"{start + n} " + "x" * 60_000} for n in range(20)]
        await asyncio.gather(*(api.post(f"/api/tasks/{made['id']}/messages", body) for body in stated))


def unsent(api: Running) -> int:
    """Return the bytes that the server buffers for its clients."""
    connections: Any = api.server.server_state.connections
    return sum(connection.transport.get_write_buffer_size() for connection in connections)


async def test_subscriber_that_never_reads_neither_delays_others_nor_uses_memory(
    api: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(live, "SEND_SEC", 3600.0)
    with never_reading(api.url):
        await until(lambda: api.state.hub.listeners == 1)
        async with watch(api.http, api.url, "?after=now&name=task.message") as client:
            saying = asyncio.create_task(chatter(api, 120))
            stated = [int(messages["data"]["text"].split()[0]) for messages in await client.messages(120)]
            assert sorted(stated) == list(range(120))
            await saying
            await until(lambda: unsent(api) > 0)
            assert api.state.hub.listeners == 2
            assert unsent(api) < 4 * live.CHUNK_BYTES
            assert api.state.hub.kept <= 17


async def test_subscriber_that_never_reads_is_disconnected(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SEND_SEC", 0.2)
    await chatter(api, 120)
    with never_reading(api.url):
        await until(lambda: api.state.hub.listeners == 1)
        await until(lambda: api.state.hub.listeners == 0)


async def test_subscriber_without_pong_is_disconnected(api: Running) -> None:
    api.server.config.ws_ping_interval = api.server.config.ws_ping_timeout = 0.2
    await chatter(api, 120)
    with never_reading(api.url):
        await until(lambda: api.state.hub.listeners == 1)
        await until(lambda: api.state.hub.listeners == 0)
        await until(lambda: not api.server.server_state.connections)


async def test_subscriber_that_never_reads_does_not_delay_shutdown(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "LINGER_SEC", 0.1)
    async with running(store_url) as api:
        await chatter(api, 120)
        with never_reading(api.url):
            await until(lambda: unsent(api) > 0)
            api.server.stop()
            await until(lambda: not api.server.server_state.connections)


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    with Postgres.start() as server:
        yield server


async def test_stream_survives_a_database_restart(own_server: Postgres) -> None:
    async with running(own_server.dsn(own_server.create_database())) as api, watch(api.http, api.url) as client:
        first = await api.post("/api/tasks", {"type": "write"})
        assert [messages["task_id"] for messages in await client.messages(2)] == [first["id"]] * 2
        await asyncio.to_thread(own_server.kill9)
        await asyncio.to_thread(own_server.start_again)
        second = await api.post("/api/tasks", {"type": "write"})
        assert [messages["task_id"] for messages in await client.messages(2)] == [second["id"]] * 2


async def test_events_of_another_process_are_sent(store_url: str) -> None:
    """The events are written by another process, so nothing wakes this server's reader."""
    async with (
        running(store_url) as api,
        await Queue.open(store_url) as elsewhere,
        watch(api.http, api.url) as one,
        watch(api.http, api.url, "?view=aegis") as two,
    ):
        for _ in range(5):
            await elsewhere.submit(type="write")
            assert await one.names(2) == ["task.created", "task.ready"]
            assert await two.names(1) == ["task:queued"]
