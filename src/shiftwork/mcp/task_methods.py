"""The methods of MCP tasks: the stable extension of revision 2026-07-28, and the experimental ones of 2025-11-25.

A client that declares the extension gets a task from `submit`, unless it passes `wait_sec`. It then has `tasks/get`,
`tasks/update`, `tasks/cancel`, and notifications for the task ids it subscribes to. In 2025-11-25, a client requests a
task with each call, and has `tasks/get`, `tasks/result`, `tasks/list` and `tasks/cancel`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.jsonrpc import HEADER_MISMATCH
from pydantic import ConfigDict, Field

from shiftwork.mcp import mcp_tasks, submitter_tools, tool_calls
from shiftwork.mcp.mcp_server import MAX_CALL_SEC
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.task_extension import (
    EXTENSION,
    Context,
    as_error,
    follows_tasks,
    require_extension,
    shows_forms,
)
from shiftwork.mcp.tool import ToolCall
from shiftwork.mcp.tool_results import Submission
from shiftwork.model.errors import OperationTimeout, ShiftworkError

EXPERIMENTAL_VERSION = "2025-11-25"
RELATED_TASK = "io.modelcontextprotocol/related-task"
SUBMIT = "submit"
RESULT_WAIT_SEC = 20.0
T = TypeVar("T")
SessionOf = Callable[[Context], McpSession]


class TaskParams(types.RequestParams):
    """The task."""

    model_config = ConfigDict(populate_by_name=True, extra="allow")
    task_id: str = Field(alias="taskId", min_length=1)


class UpdateParams(TaskParams):
    """The task, and a person's answers."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


class TaskMethods:
    """Serves the methods; `session_of` identifies the caller."""

    def __init__(self, session_of: SessionOf) -> None:
        self._session_of = session_of

    def add_to(self, server: Server[Any]) -> None:
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", UpdateParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)
        server.add_request_handler("tasks/result", TaskParams, self._result)
        server.add_request_handler("tasks/list", types.PaginatedRequestParams, self._list)
        server.middleware.append(self._experimental_call)

    async def call(self, ctx: Context, arguments: dict[str, Any]) -> HandlerResult:
        """Submit, and return the MCP task to follow; None if the client wants the answer itself."""
        if not follows_tasks(ctx) or arguments.get("wait_sec") is not None:
            return None
        made = await self._submit(ctx, arguments)
        if not isinstance(made, mcp_tasks.McpTask):
            return made
        return {"resultType": "task", **mcp_tasks.stub(made)}

    async def _submit(self, ctx: Context, arguments: dict[str, Any]) -> mcp_tasks.McpTask | types.CallToolResult:
        """Submit, and return the work, or the answer to the call if there is no work to follow."""
        session = self._session_of(ctx)
        reply = await tool_calls.reply_of(session, tool_calls.TOOLS[SUBMIT], arguments, _submitted)
        work_id = mcp_tasks.id_of(reply.answer) if isinstance(reply.answer, Submission) else None
        if work_id is None:
            return reply.as_result()
        return await self._bounded(mcp_tasks.find(session, work_id))

    async def _get(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        if ctx.protocol_version == EXPERIMENTAL_VERSION:
            return _experimental(await self._find(ctx, params.task_id))
        self._check(ctx, params.task_id)
        return mcp_tasks.detailed(await self._find(ctx, params.task_id), forms=shows_forms(ctx))

    async def _update(self, ctx: Context, params: UpdateParams) -> dict[str, Any]:
        self._check(ctx, params.task_id)
        await self._bounded(mcp_tasks.update(self._session_of(ctx), params.task_id, params.input_responses))
        return {}

    async def _cancel(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        if ctx.protocol_version != EXPERIMENTAL_VERSION:
            self._check(ctx, params.task_id)
        await self._bounded(mcp_tasks.cancel(self._session_of(ctx), params.task_id))
        if ctx.protocol_version != EXPERIMENTAL_VERSION:
            return {}
        return _experimental(await self._find(ctx, params.task_id))

    async def _result(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        """Wait for the end of the work and return the call's result; the client decides how long it waits."""
        _only_experimental(ctx)
        session = self._session_of(ctx)
        while not (work := await self._find(ctx, params.task_id)).ended:
            await self._bounded(mcp_tasks.wait(session, work, RESULT_WAIT_SEC))
        found = mcp_tasks.result_of(work)
        if work.status == "cancelled":
            found["isError"] = True
        return found | {"_meta": {RELATED_TASK: {"taskId": work.id}}}

    async def _list(self, ctx: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
        _only_experimental(ctx)
        session = self._session_of(ctx)
        page = await self._bounded(session.queue.tasks.list(after=params.cursor, newest=True))
        found = [_experimental(await self._find(ctx, task.id)) for task in page.tasks]
        return {"tasks": found} | ({"nextCursor": page.next} if page.next else {})

    async def _experimental_call(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Serve `tools/call` with `task` as in 2025-11-25; the SDK has no type for its result."""
        params = ctx.params or {}
        asks = isinstance(params.get("task"), dict) and ctx.protocol_version == EXPERIMENTAL_VERSION
        if ctx.method != "tools/call" or not asks:
            return await call_next(ctx)
        if params.get("name") != SUBMIT or tool_calls.TOOLS[SUBMIT] not in tool_calls.offered(self._session_of(ctx)):
            raise MCPError(types.METHOD_NOT_FOUND, f"{params.get('name')!r} cannot be called as a task; {SUBMIT} can")
        made = await self._submit(ctx, params.get("arguments") or {})
        return {"task": _experimental(made)} if isinstance(made, mcp_tasks.McpTask) else made

    def _check(self, ctx: Context, task_id: str) -> None:
        """Require the extension, and the same task id in the header that proxies route by."""
        require_extension(ctx)
        header = None if ctx.request is None else ctx.request.headers.get(MCP_NAME_HEADER)
        if header is not None and decode_header_value(header) != task_id:
            raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} and `taskId` differ")

    async def _find(self, ctx: Context, task_id: str) -> mcp_tasks.McpTask:
        session = self._session_of(ctx)
        return await self._bounded(mcp_tasks.find(session, task_id))

    async def _bounded(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(MAX_CALL_SEC):
                return await work
        except TimeoutError:
            raise as_error(OperationTimeout(f"the queue did not answer within {MAX_CALL_SEC:g} s")) from None
        except ShiftworkError as error:
            raise as_error(error) from None


async def _submitted(call: ToolCall) -> Submission:
    return await submitter_tools.submitted(call)


def _only_experimental(ctx: Context) -> None:
    if ctx.protocol_version != EXPERIMENTAL_VERSION:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)


def _experimental(work: mcp_tasks.McpTask) -> dict[str, Any]:
    """The same fields under the names of 2025-11-25, in which failed work is `failed`."""
    found = mcp_tasks.stub(work) | {"status": work.status}
    renamed = {"ttl": found.pop("ttlMs"), "pollInterval": found.pop("pollIntervalMs")}
    return found | renamed
