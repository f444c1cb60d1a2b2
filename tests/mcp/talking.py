"""An agent that calls tools with the SDK's client, in this process or over real transports."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from shiftwork import AnyQueue
from shiftwork.mcp.http_transport import PATH, McpAuthenticator, app_of
from shiftwork.mcp.mcp_server import McpServer, Options
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.sdk_server import build
from shiftwork.mcp.tool_calls import ERROR
from shiftwork.wire.http_server import HttpServer
from shiftwork.wire.listen_socket import listen

PATIENCE_SEC = 60
MODES = ("legacy", "auto")
"""The handshake of 2025, and the current revision, which has none."""


class Refused(Exception):
    """A tool answered with an error."""

    def __init__(self, error: dict[str, Any], text: str) -> None:
        super().__init__(text)
        self.error = error
        self.text = text

    @property
    def code(self) -> Any:
        return self.error["code"]


class Agent:
    """Calls tools, and reads their answers."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, name: str, /, **arguments: Any) -> Any:
        """Call a tool and return its answer, which the client has validated by the tool's schema."""
        async with asyncio.timeout(PATIENCE_SEC):
            done = await self.client.call_tool(name, arguments)
        text = done.content[0].text  # type: ignore[union-attr]  # our tools answer with text
        if done.is_error:
            assert done.structured_content is None, "an error does not fit the tool's output schema"
            raise Refused((done.meta or {})[ERROR], text)
        return done.structured_content

    async def take(self, **arguments: Any) -> Any:
        """The task that a claim hands out."""
        return (await self("claim", **arguments))["task"]

    async def refusal(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """The error that a call must end with."""
        try:
            answer = await self(name, **arguments)
        except Refused as refused:
            return refused.error
        raise AssertionError(f"{name} answered {answer}")

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools()).tools]


@asynccontextmanager
async def talking(mcp_server: McpServer, mode: str = "auto") -> AsyncIterator[Agent]:
    """Connect inside this process. No heartbeats are sent and no maintenance runs unless the test does it."""
    session = McpSession.single(mcp_server)
    async with Client(build(mcp_server, lambda _ctx: session), mode=mode) as client:
        yield Agent(client)


@asynccontextmanager
async def in_one_task(context: AbstractAsyncContextManager[Agent]) -> AsyncIterator[Agent]:
    """Run a context in one asyncio task, as the SDK requires; fixtures begin and end in different ones."""
    ready: asyncio.Future[Agent] = asyncio.get_running_loop().create_future()
    end = asyncio.Event()

    async def live() -> None:
        async with context as agent:
            ready.set_result(agent)
            await end.wait()

    living = asyncio.create_task(live())
    living.add_done_callback(lambda _: ready.cancel())
    try:
        yield await ready
    finally:
        end.set()
        await living


def command(store: str, *options: str, **environment: str) -> StdioServerParameters:
    """`shiftwork mcp` as a client's configuration names it."""
    line = ["-m", "shiftwork", "mcp", "--store", store, *options]
    known = {name: value for name, value in os.environ.items() if name.startswith(("SHIFTWORK_", "PYTHON"))}
    return StdioServerParameters(command=sys.executable, args=line, env={**known, **environment})


@asynccontextmanager
async def over_stdio(store: str, *options: str, mode: str = "auto", **environment: str) -> AsyncIterator[Agent]:
    """A server in a process of its own, as clients start it."""
    async with Client(command(store, *options, **environment), mode=mode) as client:
        yield Agent(client)


@asynccontextmanager
async def serving(queue: AnyQueue, *, tokens: bool = False, **options: Any) -> AsyncIterator[tuple[McpServer, str]]:
    """Run a server on a socket in this loop, without heartbeats and maintenance unless the test does them."""
    mcp_server = McpServer(queue, Options(**options))
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with listen("127.0.0.1", 0) as listening:
        app = app_of(mcp_server, McpAuthenticator(mcp_server, tokens=tokens))
        server = HttpServer(app, listening, PATH, ready.set_result)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield mcp_server, await ready
        finally:
            server.should_exit = True
            await running


@asynccontextmanager
async def over_http(url: str, *, mode: str = "auto", **headers: str) -> AsyncIterator[Agent]:
    """A client of the server at this address."""
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE_SEC) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield Agent(client)
