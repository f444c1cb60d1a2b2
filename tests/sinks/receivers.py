"""Receivers of notifications: a web server with configurable answers, and the requests that it received."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web


class Got(NamedTuple):
    """One received request."""

    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """Answers every request with `status` and `headers`; while `hangs`, it answers nothing."""

    def __init__(self) -> None:
        self.status = 204
        self.headers: dict[str, str] = {}
        self.hangs = False
        self.got: list[Got] = []
        self.came = asyncio.Event()
        self.end = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in/very-secret-path"

    @property
    def types(self) -> list[str]:
        return [got.json["type"] for got in self.got]

    async def take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append(Got(headers, await request.read()))
        self.came.set()
        if self.hangs:
            await self.end.wait()
        return web.Response(status=self.status, headers=self.headers)

    async def wait_for(self, count: int) -> None:
        """Wait until this many requests were received."""
        async with asyncio.timeout(60):
            while len(self.got) < count:
                self.came.clear()
                await self.came.wait()


@asynccontextmanager
async def receiving(port: int = 0) -> AsyncIterator[Receiver]:
    """A receiver on a port of this machine."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        receiver.end.set()
        await runner.cleanup()
