"""Routes for metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.responses import Response

from shiftwork.access.scopes import SERVER
from shiftwork.server import exposition
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors, PlainText

door = Doors("Metrics")


@door("GET /metrics", "read", answer=PlainText)
async def scrape(ask: Ask) -> Any:
    """Every metric of a workspace in the text format of Prometheus.

    With the scope `server` also what is counted for all workspaces together: latencies, and writes that were refused.
    """
    found, house = await ask.queue.metrics.read(), ask.house
    shared = (house.latencies, house.queue.engine.counters) if ask.who.may(SERVER) else (None, Counter())
    body = exposition.text(found, *shared)
    return Response(body, headers={"content-type": exposition.MEDIA_TYPE})
