"""MCP resources: the queue, open questions and approvals, and each task."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shiftwork.mcp.mcp_session import McpSession
from shiftwork.model.errors import NotFound

QUEUE = "shiftwork://queue"
PEOPLE = "shiftwork://people"
TASK = "shiftwork://task/"
MEDIA_TYPE = "application/json"


class ResourceInfo(NamedTuple):
    uri: str
    name: str
    description: str


FIXED = (
    ResourceInfo(QUEUE, "queue", "The queue's status: counts, agents, throughput and recent failures."),
    ResourceInfo(PEOPLE, "people", "Open approvals and questions."),
)
TASKS = ResourceInfo(
    TASK + "{task_id}", "task", "One task, whole: its work, its state, its history of failures, its result."
)


async def read(session: McpSession, uri: str) -> str:
    """The resource as JSON text."""
    session.require("read")
    return msgspec.json.encode(await _find(session, uri)).decode()


async def _find(session: McpSession, uri: str) -> Any:
    queue = session.queue
    if uri == QUEUE:
        return await queue.status()
    if uri == PEOPLE:
        return await queue.approvals.list()
    if uri.startswith(TASK):
        return await queue.get(uri.removeprefix(TASK))
    raise NotFound(f"there is no resource {uri!r}", where="uri", hint=f"Read {QUEUE}, {PEOPLE} or {TASKS.uri}.")
