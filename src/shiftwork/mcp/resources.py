"""What a client can read and show beside the tools: the queue, what waits for people, and each task."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shiftwork.core.errors import NotFound
from shiftwork.mcp.desk import Seat

QUEUE = "shiftwork://queue"
PEOPLE = "shiftwork://people"
TASK = "shiftwork://task/"
MEDIA_TYPE = "application/json"


class Described(NamedTuple):
    uri: str
    name: str
    description: str


FIXED = (
    Described(QUEUE, "queue", "How the queue stands: counts, agents, pace and recent failures."),
    Described(PEOPLE, "people", "What waits for a person: approvals and questions."),
)
TASKS = Described(
    TASK + "{task_id}", "task", "One task, whole: its work, its state, its history of failures, its result."
)


async def read(seat: Seat, uri: str) -> str:
    """The resource as JSON text."""
    seat.require("read")
    return msgspec.json.encode(await _find(seat, uri)).decode()


async def _find(seat: Seat, uri: str) -> Any:
    queue = seat.asking
    if uri == QUEUE:
        return await queue.status()
    if uri == PEOPLE:
        return await queue.approvals()
    if uri.startswith(TASK):
        return await queue.get(uri.removeprefix(TASK))
    raise NotFound(f"there is no resource {uri!r}", where="uri", mend=f"Read {QUEUE}, {PEOPLE} or {TASKS.uri}.")
