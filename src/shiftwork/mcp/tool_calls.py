"""Runs a tool call: reads its arguments, bounds its time, and makes errors say how to continue."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

import mcp_types as types
import msgspec

from shiftwork.mcp import submitter_tools, tool_errors, worker_tools
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.tool import Handler, Tool, ToolCall, by_name, values_of
from shiftwork.model import check
from shiftwork.model.errors import InputError, LeaseLost, OperationTimeout, ShiftworkError

log = logging.getLogger("shiftwork.mcp")
ERROR = "shiftwork/error"
"""The key of the error for programs in the metadata of a refused call's result."""
TOOLS: dict[str, Tool] = by_name([*worker_tools.tool.all, *submitter_tools.tool.all])


class Reply(NamedTuple):
    """The outcome of a call, as text and as data: its answer in the tool's output schema, or an error."""

    text: str
    content: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    answer: msgspec.Struct | None = None
    """The handler's own answer."""

    def as_result(self) -> types.CallToolResult:
        text = types.TextContent(type="text", text=self.text)
        if self.error is not None:
            # Clients check structured content against the tool's output schema. An error does not match it, so they
            # would show the mismatch instead of the error. Programs find its fields in the metadata.
            return types.CallToolResult(content=[text], is_error=True, _meta={ERROR: self.error})
        return types.CallToolResult(content=[text], structured_content=self.content)


def offered(session: McpSession) -> list[Tool]:
    """The tools offered to this caller."""
    role = session.server.options.role
    return [tool for tool in TOOLS.values() if tool.is_for(role) and session.may(tool.scope)]


async def call(session: McpSession, tool: Tool, arguments: dict[str, Any]) -> Reply:
    """Call the tool's own handler."""
    return await reply_of(session, tool, arguments, tool.handler)


async def reply_of(session: McpSession, tool: Tool, arguments: dict[str, Any], handler: Handler) -> Reply:
    """The answer of a handler to the tool's arguments, or its error."""
    try:
        answer = await _answer(session, tool, arguments, handler)
    except ShiftworkError as error:
        if isinstance(error, LeaseLost):
            session.stop_heartbeats(str(arguments.get("token")))
        return _refused(error)
    except Exception:
        log.exception("tool %s failed", tool.name)
        return _refused(tool_errors.internal())
    content: dict[str, Any] = msgspec.to_builtins(answer)
    return Reply(msgspec.json.encode(content).decode(), content, answer=answer)


def _refused(error: ShiftworkError) -> Reply:
    return Reply(tool_errors.sentence(error), error=tool_errors.as_data(error))


async def _answer(session: McpSession, tool: Tool, arguments: dict[str, Any], handler: Handler) -> msgspec.Struct:
    session.require(tool.scope)
    tool_call = ToolCall(session, tool, values_of(_read(tool, arguments)))
    limit = session.server.options.longest_call_sec
    try:
        async with asyncio.timeout(limit):
            return await handler(tool_call)
    except TimeoutError:
        hint = "The queue is busy or unreachable; it is unknown whether the call had an effect."
        raise OperationTimeout(f"{tool.name} was not answered within {limit:g} s", hint=hint) from None


def _read(tool: Tool, arguments: dict[str, Any]) -> msgspec.Struct:
    try:
        return check.read(arguments, tool.takes)
    except InputError as error:
        takes = ", ".join(tool.takes.__struct_encode_fields__)
        raise InputError(
            error.what, where=error.where, hint=f"{tool.name} takes {takes}; nothing was changed."
        ) from None
