"""One call of a tool: its arguments read, its work done in bounded time, its errors told so that a model can
continue.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

import msgspec

from shiftwork.mcp import refusals, submitting, working
from shiftwork.mcp.desk import McpSession
from shiftwork.mcp.tool import Tool
from shiftwork.model import check
from shiftwork.model.errors import InputError, LeaseLost, OperationTimeout, ShiftworkError

log = logging.getLogger("shiftwork.mcp")
TOOLS: dict[str, Tool] = {each.name: each for each in [*working.tool.all, *submitting.tool.all]}


class Reply(NamedTuple):
    """What a call came to, as text and as data: its answer in the tool's output schema, or an error."""

    text: str
    content: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


def offered(session: McpSession) -> list[Tool]:
    """The tools that this caller has."""
    return [tool for tool in TOOLS.values() if session.may(tool)]


async def call(session: McpSession, tool: Tool, arguments: dict[str, Any]) -> Reply:
    try:
        answer = await _answer(session, tool, arguments)
    except ShiftworkError as error:
        if isinstance(error, LeaseLost):
            session.let_go(str(arguments.get("token")))
        return _refused(error)
    except Exception:
        log.exception("tool %s failed", tool.name)
        return _refused(refusals.internal())
    content: dict[str, Any] = msgspec.to_builtins(answer)
    return Reply(msgspec.json.encode(content).decode(), content)


def _refused(error: ShiftworkError) -> Reply:
    return Reply(refusals.sentence(error), error=refusals.as_data(error))


async def _answer(session: McpSession, tool: Tool, arguments: dict[str, Any]) -> msgspec.Struct:
    session.require(tool.scope)
    taken = _read(tool, arguments)
    limit = session.server.options.longest_call_sec
    try:
        async with asyncio.timeout(limit):
            return await tool.handler(session, taken)
    except TimeoutError:
        hint = "The queue is busy or away; whether the call had its effect is not known."
        raise OperationTimeout(f"{tool.name} was not answered within {limit:g} s", hint=hint) from None


def _read(tool: Tool, arguments: dict[str, Any]) -> msgspec.Struct:
    try:
        return check.read(arguments, tool.takes)
    except InputError as error:
        takes = ", ".join(tool.takes.__struct_encode_fields__)
        raise InputError(
            error.what, where=error.where, hint=f"{tool.name} takes {takes}; nothing was changed."
        ) from None
