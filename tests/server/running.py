"""A server on a real socket in the test's loop, and an HTTP client for it."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import uvicorn.server

from shiftwork.server.openapi import refusals
from shiftwork.server.options import Options
from shiftwork.server.routes import ENDPOINTS
from shiftwork.server.serve import Server, open_server

POLL_SEC = 0.005


async def _sleep_briefly(seconds: float) -> None:
    await asyncio.sleep(min(seconds, POLL_SEC))


# uvicorn checks for a stop every 100 ms and then sleeps 100 ms: that is longer than most tests of a server take.
vars(uvicorn.server)["asyncio"] = SimpleNamespace(**{**vars(asyncio), "sleep": _sleep_briefly})


class Reply:
    """A complete answer."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> Any:
        """The stable code of a refusal."""
        assert self.headers["content-type"] == "application/problem+json", self.body
        return self.json["code"]

    def __repr__(self) -> str:
        return f"{self.status} {self.body[:500]!r}"


def check_documented(method: str, path: str, reply: Reply) -> None:
    """Check that the error is documented in the OpenAPI document."""
    plain = path.partition("?")[0]
    endpoint = next(
        (endpoint for endpoint in ENDPOINTS if endpoint.method == method and _pattern(endpoint.path).fullmatch(plain)),
        None,
    )
    if endpoint is not None and reply.status >= 400 and reply.status != 500 and plain != "/readyz":
        assert reply.code in {error.code for error in refusals(endpoint)}, f"{endpoint.name} refuses with {reply.code}"


@functools.cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{\w+}", "[^/]+", path))


class Running:
    """One running server, with a client that has no token unless one is set."""

    def __init__(self, served: Server, http: aiohttp.ClientSession) -> None:
        self.server = served
        self.state = served.state
        self.http = http
        self.url = served.url

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        """One call; `body` is sent as JSON, `data` as it is."""
        if body is not None:
            options["data"] = json.dumps(body)
        async with self.http.request(method, self.url + path, **options) as answer:
            reply = Reply(answer.status, answer.headers, await answer.read())
        check_documented(method, path, reply)
        return reply

    async def get(self, path: str, **options: Any) -> Any:
        """Return the JSON of an answer that must succeed."""
        reply = await self.call("GET", path, **options)
        assert reply.status == 200, reply
        return reply.json

    async def post(self, path: str, body: Any = None, **options: Any) -> Any:
        reply = await self.call("POST", path, {} if body is None else body, **options)
        assert reply.status in {200, 201, 204}, reply
        return reply.json if reply.body else None

    async def pass_time(self, seconds: float) -> Any:
        """Move the server's clock through its own endpoint; the maintenance jobs that come due run."""
        return await self.post("/api/testing/clock", {"advance_sec": seconds})


@asynccontextmanager
async def running(store: str, **options: Any) -> AsyncIterator[Running]:
    """Serve on a free port until the block ends. Maintenance runs only when the clock is moved, unless asked for."""
    given = Options(**{"store": store, "port": 0, "test_clock": True, "maintenance": False, **options})
    async with open_server(given) as served, aiohttp.ClientSession() as http:
        task = asyncio.create_task(served.run_until_stopped())
        try:
            yield Running(served, http)
        finally:
            served.stop()
            await task
