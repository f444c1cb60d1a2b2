"""Notifications about MCP tasks: a client that subscribes to task ids is notified of every change.

A stream ends when all its tasks have ended. It cannot be resumed: a client that lost it reads the tasks and subscribes
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from pydantic import BaseModel

from shiftwork.mcp import mcp_tasks
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.task_extension import as_error, require_extension, shows_forms
from shiftwork.model.errors import NotFound, ShiftworkError
from shiftwork.operation.local import check_allowed

MAX_STREAMS = 1000
MAX_TASK_IDS = 100
WAIT_SEC = 20.0
Context = ServerRequestContext[Any, Any]


class TaskNotification(BaseModel):
    """`notifications/tasks`; its fields are a dict, because a null `ttlMs` must be sent, too."""

    method: str = "notifications/tasks"
    params: dict[str, Any]


class Acknowledgement(BaseModel):
    """The task ids of the stream: those that exist."""

    method: str = "notifications/subscriptions/acknowledged"
    params: dict[str, Any]


class TaskSubscriptions:
    """Serves `subscriptions/listen`: each call is a stream."""

    def __init__(self, session_of: Callable[[Context], McpSession]) -> None:
        self._session_of = session_of
        self._streams = 0

    async def __call__(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        wanted = _task_ids(params.notifications)
        if wanted:
            require_extension(ctx)
        if self._streams >= MAX_STREAMS:
            raise MCPError(types.INTERNAL_ERROR, f"this server has {MAX_STREAMS} subscriptions, the maximum")
        stream = _Stream(ctx, self._session_of(ctx))
        self._streams += 1
        try:
            await stream.serve(wanted)
        except ShiftworkError as error:
            raise as_error(error) from None
        finally:
            self._streams -= 1
        return types.SubscriptionsListenResult(_meta=stream.meta)


def _task_ids(notifications: types.SubscriptionFilter) -> list[str]:
    task_ids = (notifications.model_extra or {}).get("taskIds", [])
    if (
        not isinstance(task_ids, list)
        or len(task_ids) > MAX_TASK_IDS
        or not all(isinstance(each, str) for each in task_ids)
    ):
        raise MCPError(types.INVALID_PARAMS, f"`taskIds` must be a list of at most {MAX_TASK_IDS} ids")
    return task_ids


class _Stream:
    """One stream, with the last notification of each task."""

    def __init__(self, ctx: Context, session: McpSession) -> None:
        self._ctx = ctx
        self._session = session
        self._forms = shows_forms(ctx)
        self._last_sent: dict[str, dict[str, Any]] = {}
        self.meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}

    async def serve(self, wanted: list[str]) -> None:
        # Take the cursor before the tasks are read, so that changes in between arrive as events.
        self._session.require("read")
        cursor = (await self._session.queue.events("now", limit=1)).next if wanted else 0
        found = [work for each in wanted if (work := await self._find(each)) is not None]
        agreed = {"taskIds": [work.id for work in found]} if found else {}
        await self._send(Acknowledgement(params={"notifications": agreed, "_meta": self.meta}))
        for work in found:
            await self._notify(work)
        open_ones = [work for work in found if not work.ended]
        async with asyncio.TaskGroup() as both:  # filters narrow each other, so each kind has its own reader
            both.create_task(
                self._follow({work.id: work.id for work in open_ones if work.is_dag}, cursor, of_dags=True)
            )
            # The events of a task that was retried as a new task are those of the newest.
            tasks = {work.tasks[0].id: work.id for work in open_ones if not work.is_dag}
            both.create_task(self._follow(tasks, cursor, of_dags=False))

    async def _follow(self, open_ones: dict[str, str], cursor: int, *, of_dags: bool) -> None:
        queue = self._session.queue
        while open_ones:
            await check_allowed(queue)
            names = list(open_ones)
            filters = {"dag": names} if of_dags else {"task": names}
            page = await queue.events(cursor, wait=WAIT_SEC, **filters)  # type: ignore[arg-type]  # one of two filters
            cursor = page.next
            changed = {event.dag_id if of_dags else event.task_id for event in page.events}
            for name in [each for each in names if each in changed]:
                work = await self._find(open_ones[name])
                if work is not None:
                    await self._notify(work)
                if work is None or work.ended:
                    del open_ones[name]

    async def _find(self, work_id: str) -> mcp_tasks.McpTask | None:
        try:
            return await mcp_tasks.find(self._session, work_id)
        except NotFound:
            return None

    async def _notify(self, work: mcp_tasks.McpTask) -> None:
        """Notify the client if anything visible to it has changed."""
        whole = mcp_tasks.detailed(work, forms=self._forms)
        seen = {name: value for name, value in whole.items() if name != "lastUpdatedAt"}
        if self._last_sent.get(work.id) != seen:
            self._last_sent[work.id] = seen
            await self._send(TaskNotification(params=whole | {"_meta": self.meta}))

    async def _send(self, notification: BaseModel) -> None:
        await self._ctx.session.send_notification(
            notification,  # type: ignore[arg-type]  # the SDK's union has no notifications of extensions
            related_request_id=self._ctx.request_id,
        )
