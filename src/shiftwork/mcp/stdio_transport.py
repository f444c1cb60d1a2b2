"""MCP over standard input and output: one client, which started this process and ends it."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from shiftwork.mcp.mcp_server import Options, open_context
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.sdk_server import build
from shiftwork.operation.interface import AnyQueue


async def serve(queue: AnyQueue, options: Options) -> None:
    """Serve until the client closes our standard input."""
    async with open_context(queue, options) as mcp_server:
        session = McpSession.single(mcp_server)
        server = build(mcp_server, lambda _ctx: session)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
