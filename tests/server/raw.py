"""Raw bytes on a connection, for requests that no HTTP client would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PATIENCE_SEC = 30


class Answer(NamedTuple):
    """One answer, unparsed."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class TaskLine:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> bool:
        """Wait until most of it is sent; return False if the server has disconnected."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return False
        return not self._writer.is_closing()

    async def hang_up(self) -> None:
        self._writer.close()

    async def answer(self) -> Answer:
        """The next answer, which must have a length."""
        async with asyncio.timeout(PATIENCE_SEC):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(first.split()[1]), headers, body)

    async def is_over(self) -> bool:
        """Wait until the server has disconnected; return False if it sends something instead."""
        async with asyncio.timeout(PATIENCE_SEC):
            try:
                return await self._reader.read(1) == b""
            except ConnectionResetError:
                return True


@asynccontextmanager
async def line(url: str) -> AsyncIterator[TaskLine]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield TaskLine(reader, writer)
    finally:
        writer.close()


def request(method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
    """Build a correct request; headers by name, with `_` for `-`."""
    found = {"host": "localhost", "content-length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in found.items()]
    return f"{method} {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1") + body
