"""A bad network to a server: lost and late answers, and servers that are not ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit


class Way:
    """A proxy between a client and a server, which can lose or delay messages."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = parts.hostname, parts.port
        self.url = ""
        self.lose = 0
        """How many answers will get lost: the connection ends in their place."""
        self.lost = 0
        self.held: asyncio.Event | None = None
        """While there is one, answers are kept back; set when the first is."""

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection(*self._target)
        there_and_back = asyncio.create_task(_forward(reader, here)), asyncio.create_task(self._answer(there, writer))
        try:
            await asyncio.wait(there_and_back, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in there_and_back:
                task.cancel()
            await asyncio.gather(*there_and_back, return_exceptions=True)
            await _close(here, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if self.held is not None:
                self.held.set()
                await asyncio.Event().wait()
            if self.lose > 0:
                self.lose -= 1
                self.lost += 1
                return
            writer.write(data)
            await writer.drain()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


async def _close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


Meet = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def listening(meet: Meet) -> AsyncIterator[str]:
    """Yield the address of a server that handles every connection; close all of them at the end."""
    meetings: set[asyncio.Task[None]] = set()
    guests: list[asyncio.StreamWriter] = []

    def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guests.append(writer)
        meetings.add(asyncio.create_task(meet(reader, writer)))

    server = await asyncio.start_server(welcome, "127.0.0.1", 0)
    try:
        yield "http://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
        for meeting in meetings:
            meeting.cancel()
        await asyncio.gather(*meetings, return_exceptions=True)
        await _close(*guests)


@asynccontextmanager
async def bad_way(target: str) -> AsyncIterator[Way]:
    way = Way(target)
    async with listening(way.meet) as way.url:
        yield way


class Script:
    """A server that answers each request with the next of its lines, whatever was asked; the last one forever."""

    def __init__(self, answers: Sequence[bytes | None]) -> None:
        self._answers = list(answers)
        self.url = ""
        self.heard: list[bytes] = []

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heard.append(await reader.readuntil(b"\r\n\r\n"))
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            if answer is None:
                await reader.read()  # until anyone who asked gives up
            else:
                writer.write(answer)
        finally:
            await _close(writer)


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@asynccontextmanager
async def scripted(*answers: bytes | None) -> AsyncIterator[Script]:
    """Run a scripted server; None means no answer at all."""
    script = Script(answers)
    async with listening(script.meet) as script.url:
        yield script
