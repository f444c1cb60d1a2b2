"""MCP over standard input and output: one client, which started this process and ends it."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from shiftwork.mcp.desk import Options
from shiftwork.mcp.protocol import build
from shiftwork.mcp.serving import open_context
from shiftwork.operation.interface import AnyQueue


async def serve(queue: AnyQueue, options: Options) -> None:
    """Serve until the client closes our standard input."""
    async with open_context(queue, options) as mcp_server:
        session = mcp_server.session()
        server = build(mcp_server, lambda _ctx: session)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
