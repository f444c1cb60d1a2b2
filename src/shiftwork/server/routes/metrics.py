"""Routes for metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.responses import Response

from shiftwork.access.scopes import SERVER
from shiftwork.server import exposition
from shiftwork.server.endpoint import EndpointGroup, PlainText
from shiftwork.server.request_context import RequestContext

endpoint = EndpointGroup("Metrics")


@endpoint("GET /metrics", "read", answer=PlainText)
async def scrape(context: RequestContext) -> Any:
    """Every metric of a workspace in the text format of Prometheus.

    With the scope `server` also what is counted for all workspaces together: latencies, and writes that were refused.
    """
    found, state = await context.queue.metrics.read(), context.state
    refused = sum((each.engine.counters for each in state.queue.databases()), Counter[str]())
    shared = (state.latencies, refused) if context.who.may(SERVER) else (None, Counter())
    body = exposition.text(found, *shared)
    return Response(body, headers={"content-type": exposition.MEDIA_TYPE})
