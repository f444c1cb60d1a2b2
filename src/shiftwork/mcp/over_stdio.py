"""MCP over standard input and output: one client, which started this process and ends it."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from shiftwork.client.opening import AnyQueue
from shiftwork.mcp.desk import Options
from shiftwork.mcp.protocol import build
from shiftwork.mcp.serving import open_desk


async def serve(queue: AnyQueue, options: Options) -> None:
    """Serve until the client closes our standard input."""
    async with open_desk(queue, options) as desk:
        seat = desk.seat()
        server = build(desk, lambda _ctx: seat)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
