"""Subscribers of a running server: over a WebSocket, and by server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

PATIENCE_SEC = 60.0
"""Far more than anything here takes."""


class Watcher:
    """A WebSocket client."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.cursor = ""

    async def message(self) -> dict[str, Any]:
        """The next message, which must be there."""
        data: dict[str, Any] = json.loads(await self.socket.receive_str(timeout=PATIENCE_SEC))
        self.cursor = data.get("cursor", self.cursor)
        return data

    async def messages(self, count: int) -> list[dict[str, Any]]:
        return [await self.message() for _ in range(count)]

    async def names(self, count: int) -> list[str]:
        return [messages["event"] for messages in await self.messages(count)]

    async def subscribe(self, after: Any = None, **filters: Any) -> dict[str, Any]:
        """Subscribe to something else; messages before the answer belong to the earlier subscription."""
        await self.socket.send_json({"subscribe": filters, **({} if after is None else {"after": after})})
        while (found := await self.message())["event"] != "subscribed":
            pass
        return found

    async def end(self) -> int:
        """Read to the end; the code it was closed with."""
        async with asyncio.timeout(PATIENCE_SEC):
            while (await self.socket.receive()).type not in {aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED}:
                pass
        assert self.socket.close_code is not None
        return self.socket.close_code


@asynccontextmanager
async def connect(http: aiohttp.ClientSession, url: str, query: str = "", **options: Any) -> AsyncIterator[Watcher]:
    """Connect a client; the first message accepts or refuses it."""
    async with http.ws_connect(f"{url}/ws{query}", max_msg_size=0, **options) as socket:
        yield Watcher(socket)


@asynccontextmanager
async def watch(http: aiohttp.ClientSession, url: str, query: str = "", **options: Any) -> AsyncIterator[Watcher]:
    """Connect a client and wait for its starting cursor."""
    async with connect(http, url, query, **options) as watcher:
        messages = await watcher.message()
        assert messages["event"] == "subscribed", messages
        yield watcher


class Lines:
    """A reader of server-sent events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.last_id: str | None = None

    async def block(self) -> dict[str, str]:
        """The fields of the next block that holds any; a comment has the empty name."""
        fields: dict[str, str] = {}
        while True:
            async with asyncio.timeout(PATIENCE_SEC):
                line = (await self._answer.content.readline()).decode()
            if not line:
                raise EOFError
            if line == "\n" and fields:
                self.last_id = fields.get("id", self.last_id)
                return fields
            name, _, value = line.rstrip("\n").partition(":")
            fields[name] = value.removeprefix(" ")

    async def event(self) -> dict[str, Any]:
        """The next event, whose id and name must be what its data says."""
        while "data" not in (block := await self.block()):
            pass
        data: dict[str, Any] = json.loads(block["data"])
        assert (data["cursor"], data["event"]) == (block["id"], block["event"])
        return data


@asynccontextmanager
async def follow(http: aiohttp.ClientSession, url: str, query: str = "", **headers: str) -> AsyncIterator[Lines]:
    """A stream of server-sent events that has begun."""
    given = {"accept": "text/event-stream", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with http.get(f"{url}/api/events{query}", headers=given, timeout=aiohttp.ClientTimeout(None)) as answer:
        assert answer.status == 200, await answer.read()
        assert answer.content_type == "text/event-stream"
        lines = Lines(answer)
        await lines.block()
        yield lines
