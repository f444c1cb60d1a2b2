"""Events: pages after a cursor, and the live stream."""

from __future__ import annotations

from typing import Any

from shiftwork.core.errors import Malformed, NotFound, Overloaded, TooManyRequests
from shiftwork.server import live
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors
from shiftwork.server.live import EventQuery
from shiftwork.wire.shapes import EventPage

door = Doors("Events")


@door(
    "GET /api/events",
    "read",
    query=EventQuery,
    answer=EventPage,
    errors=(NotFound, Overloaded, TooManyRequests, Malformed),
)
async def events(ask: Ask) -> Any:
    """Events after a cursor; with `wait_sec` the answer waits for the first one.

    With `Accept: text/event-stream` they keep coming: each has its cursor as its id, and `Last-Event-ID` resumes.
    `after` is a cursor as it was told, or `now`. Several words for one filter are alternatives.
    """
    return await live.events(ask)
