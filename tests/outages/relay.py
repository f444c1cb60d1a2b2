"""A network that can drop connections silently, as firewalls and failing machines do.

It can also delay every message.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit


class Relay:
    """Passes bytes on in both directions. Connections that it drops stay open, and nothing comes over them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._links: list[set[asyncio.StreamWriter]] = []
        self._dropped: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.silent = False
        """Whether new connections are met with silence, too."""
        self.delay_sec = 0.0
        """How long every piece is under way, in each direction."""

    @property
    def carried(self) -> int:
        """Connections that were not dropped."""
        return len([link for link in self._links if not link & self._dropped])

    def drop(self) -> None:
        """Drop all current connections silently."""
        for link in self._links:
            self._dropped |= link

    def lose_answers(self) -> None:
        """What the server says from now on never reaches those who are connected now."""
        self._dropped |= self._clients

    def hang_up(self) -> None:
        """Everyone who is connected now learns that the connection is lost."""
        for link in self._links:
            for end in link:
                end.close()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except ConnectionError:
            writer.close()  # the server is down
            return
        link = {writer, there_writer}
        self._links.append(link)
        self._clients.add(writer)
        if self.silent:
            self._dropped |= link
        try:
            await asyncio.gather(self._pass(reader, there_writer), self._pass(there_reader, writer))
        finally:
            self._links.remove(link)
            self._clients.discard(writer)
            for end in link:
                end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                if self.delay_sec:  # those behind it are under way meanwhile, and arrive in the same order
                    loop.call_later(self.delay_sec, self._deliver, writer, piece)
                elif writer not in self._dropped:
                    writer.write(piece)
                    await writer.drain()
        if writer not in self._dropped:
            loop.call_later(self.delay_sec, writer.close)

    def _deliver(self, writer: asyncio.StreamWriter, piece: bytes) -> None:
        if writer not in self._dropped and not writer.is_closing():
            writer.write(piece)


@asynccontextmanager
async def relay_to(url: str) -> AsyncIterator[tuple[Relay, str]]:
    """Start a relay to a server of this machine; yield it and the server's address through it."""
    parts = urlsplit(url)
    assert parts.port is not None
    relay = Relay(parts.port)
    tasks: set[asyncio.Task[None]] = set()

    def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(relay.carry(reader, writer)))

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield relay, urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")))
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
