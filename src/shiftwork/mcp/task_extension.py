"""The client's capabilities for tasks and forms, and the conversion of errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from shiftwork.mcp import tool_errors
from shiftwork.model.errors import Forbidden, InputError, NotFound, ShiftworkError, WrongState

EXTENSION = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
Context = ServerRequestContext[Any, Any]


def capabilities_of(ctx: Context) -> Mapping[str, Any]:
    """What the client declared with this request; earlier requests do not count."""
    meta = (ctx.params or {}).get("_meta") or {}
    declared = meta.get(CAPABILITIES)
    return declared if isinstance(declared, dict) else {}


def follows_tasks(ctx: Context) -> bool:
    extensions = capabilities_of(ctx).get("extensions")
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and isinstance(extensions, dict) and EXTENSION in extensions


def shows_forms(ctx: Context) -> bool:
    """Whether the client can show forms to a person; an empty declaration also means forms."""
    declared = capabilities_of(ctx).get("elicitation")
    return isinstance(declared, dict) and (not declared or "form" in declared)


def require_extension(ctx: Context) -> None:
    if not follows_tasks(ctx):
        data: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"the client did not declare {EXTENSION}", data)


def as_error(error: ShiftworkError) -> MCPError:
    """Convert an error of the queue to one of the protocol."""
    refused = isinstance(error, InputError | NotFound | WrongState)
    code = types.INVALID_PARAMS if refused else types.INVALID_REQUEST if isinstance(error, Forbidden) else None
    return MCPError(
        types.INTERNAL_ERROR if code is None else code,
        tool_errors.sentence(error),
        {"error": tool_errors.as_data(error)},
    )
