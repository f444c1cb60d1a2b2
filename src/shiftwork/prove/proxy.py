"""A proxy in front of a server: it cuts, silences and slows connections, and loses, repeats and delays messages."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit, urlunsplit

PIECE = 1 << 16
ANSWER_SEC = 10.0
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class Link:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.silent = False
        """Drop all data without closing the connection."""
        self.loses_answer = False

    def abort(self) -> None:
        for end in (self.client, self.server):
            end.transport.abort()


class Proxy:
    """Passes on requests and answers; `lose`, `repeat` and `hold` are the shares of them that are affected."""

    def __init__(self, host: str, port: int, chance: random.Random, *, http: bool) -> None:
        self._host, self._port, self._chance, self._http = host, port, chance, http
        self._links: set[Link] = set()
        self._ends: set[asyncio.StreamWriter] = set()
        """Every open connection on both sides, recorded at its creation: a cancelled task may not have started."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.delay_sec = 0.0
        """The delay of each piece of data, in both directions."""
        self.lose = self.repeat = self.hold = 0.0
        self.counts: Counter[str] = Counter()
        """How many messages were slowed, lost, repeated or overtaken."""

    def cut(self) -> int:
        """Reset every connection; returns how many there were."""
        links = list(self._links)
        for link in links:
            link.abort()
        return len(links)

    def silence(self) -> int:
        """Silence every other connection, like a firewall that forgot it; returns how many."""
        links = [link for link in self._links if not link.silent and self._chance.random() < 0.5]
        for link in links:
            link.silent = True
        return len(links)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        self._keep(self._carry(reader, writer))

    async def close(self) -> None:
        """Close every connection and wait for it, because the loop may be closed right after."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._end(writer) for writer in list(self._ends)))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        self._ends.add(writer)
        return reader, writer

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        """Close a connection. All waiters share one future, so a cancelled waiter must not cancel it."""
        writer.transport.abort()
        with suppress(OSError):
            await asyncio.shield(writer.wait_closed())
        self._ends.discard(writer)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await self._connect()
        except OSError:
            await self._end(writer)
            return
        link = Link(writer, there_writer)
        self._links.add(link)
        ways = [
            asyncio.create_task(self._requests(link, reader)),
            asyncio.create_task(self._answers(link, there_reader)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, there_writer):
                await self._end(end)

    async def _requests(self, link: Link, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while message := await self._message(reader):
                if self._http and message.startswith(b"POST "):
                    await self._disturb(message)
                await self._take_time()
                if _commits(message) and self._chance.random() < self.lose:
                    link.loses_answer = True
                self.counts["requests"] += 1
                if not link.silent:
                    link.server.write(message)
                    await link.server.drain()

    async def _message(self, reader: asyncio.StreamReader) -> bytes:
        """Read a whole HTTP request; for other protocols, read what has arrived."""
        if not self._http:
            return await reader.read(PIECE)
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        return head + await reader.readexactly(int(length[1])) if length else head

    async def _disturb(self, message: bytes) -> None:
        """Repeat the message later, or let others overtake it."""
        if self._chance.random() < self.repeat:
            self._keep(self._send_again(message))
        if self._chance.random() < self.hold:
            before = self.counts["requests"]
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))
            self.counts["overtaken"] += self.counts["requests"] > before

    async def _send_again(self, message: bytes) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, 1.0))
        with suppress(OSError, TimeoutError):
            reader, writer = await self._connect()
            try:
                writer.write(message)
                async with asyncio.timeout(ANSWER_SEC):
                    self.counts["repeated"] += bool(await reader.read(PIECE))
            finally:
                await self._end(writer)

    async def _answers(self, link: Link, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                await self._take_time()
                if link.loses_answer:
                    self.counts["lost"] += 1
                    link.abort()
                    return
                if not link.silent:
                    link.client.write(piece)
                    await link.client.drain()

    async def _take_time(self) -> None:
        if self.delay_sec:
            self.counts["slowed"] += 1
            await asyncio.sleep(self.delay_sec)


def _commits(message: bytes) -> bool:
    """Whether its answer follows a commit: it is an HTTP request that changes something, or COMMIT itself."""
    return message.startswith(b"POST ") or b"commit" in message


class Host(NamedTuple):
    name: str
    port: int


def hosts_of(url: str) -> list[Host]:
    """The hosts in a PostgreSQL address, to proxy; none if it names a socket or verifies the host name."""
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    places = parts.netloc.rpartition("@")[2]
    if not places or "host" in options or options.get("sslmode") == ["verify-full"]:
        return []
    hosts = [urlsplit(f"//{place}") for place in places.split(",")]
    return [Host(host.hostname or "", host.port or 5432) for host in hosts]


def through(url: str, ports: list[int]) -> str:
    """The address through proxies on these ports."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=login + at + ",".join(f"127.0.0.1:{port}" for port in ports)))


@asynccontextmanager
async def listening(proxy: Proxy) -> AsyncIterator[int]:
    """Run the proxy and yield its port."""
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await proxy.close()
