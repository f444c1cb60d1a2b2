"""Liveness and readiness."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from starlette.responses import Response

from shiftwork import views
from shiftwork.model.errors import ShiftworkError
from shiftwork.server.endpoint import EndpointGroup
from shiftwork.server.request_context import RequestContext
from shiftwork.wire.shapes import Health

log = logging.getLogger("shiftwork.server")
endpoint = EndpointGroup("Health")
MAX_SEC = 2.0


def _health(context: RequestContext, status: Any, detail: str | None = None) -> Health:
    from shiftwork import __version__  # noqa: PLC0415  # the package is half made while this module is loaded

    store = context.state.queue.url.partition(":")[0]
    return Health(
        status, __version__, store, context.state.clock is not None, detail, views.name_of(context.state.view)
    )


@endpoint("GET /healthz", None, answer=Health)
async def healthz(context: RequestContext) -> Any:
    """The process lives and answers."""
    return _health(context, "ok")


@endpoint("GET /readyz", None, answer=Health)
async def readyz(context: RequestContext) -> Any:
    """It can serve: its store answers and takes writes, and it is not about to stop.

    Else 503, and a balancer should go elsewhere.
    """
    if context.state.stopping.is_set():
        return _unready(_health(context, "stopping"))
    try:
        async with asyncio.timeout(MAX_SEC):
            for each in context.state.queue.databases():
                await each.engine.store.read(lambda tx: tx.one("read_workspace", name="default"))
    except (ShiftworkError, TimeoutError) as error:
        return _unavailable(context, "the store does not answer", error)
    refusals = [each.engine.store.refusal for each in context.state.queue.databases()]
    if refusal := next(filter(None, refusals), None):  # found out by a small write every few seconds
        return _unavailable(context, "the store takes no writes", refusal)
    return _health(context, "ok")


def _unavailable(context: RequestContext, what: str, error: Exception) -> Response:
    """Anyone may ask, and the error may name the database: it is in the log alone."""
    log.warning("not ready: %s: %s", what, str(error) or "timed out")
    return _unready(_health(context, "unavailable", what))


def _unready(health: Health) -> Response:
    return Response(msgspec.json.encode(health), 503, {"retry-after": "1"}, "application/json")
