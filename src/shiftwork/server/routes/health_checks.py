"""Liveness and readiness."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from starlette.responses import Response

from shiftwork import views
from shiftwork.model.errors import ShiftworkError
from shiftwork.queue import Queue
from shiftwork.server.endpoint import EndpointGroup
from shiftwork.server.request_context import RequestContext
from shiftwork.wire.shapes import Health

log = logging.getLogger("shiftwork.server")
endpoint = EndpointGroup("Health")
MAX_SEC = 2.0


def _health(context: RequestContext, status: Any, detail: str | None = None) -> Health:
    from shiftwork import __version__  # noqa: PLC0415  # the package is still being imported when this module is

    store = context.state.queue.url.partition(":")[0]
    return Health(
        status, __version__, store, context.state.clock is not None, detail, views.name_of(context.state.view)
    )


@endpoint("GET /healthz", None, answer=Health)
async def healthz(context: RequestContext) -> Any:
    """Report that the process is alive."""
    return _health(context, "ok")


@endpoint("GET /readyz", None, answer=Health)
async def readyz(context: RequestContext) -> Any:
    """Report whether the server can serve: its store answers and accepts writes, and it is not stopping.

    Otherwise the status is 503, and a load balancer should use another server. One database of a map is enough, since
    no other server has more.
    """
    if context.state.stopping.is_set():
        return _unready(_health(context, "stopping"))
    databases = context.state.queue.databases()
    found = await asyncio.gather(*(_problem(each) for each in databases))
    problems = [each for each in found if each is not None]
    if len(problems) == len(databases):
        return _unavailable(context, *problems[0])
    for what, error in problems:
        log.warning("a database of the map is unavailable: %s: %s", what, str(error) or "timed out")
    unavailable = f"{len(problems)} of {len(databases)} databases cannot be used" if problems else None
    return _health(context, "ok", unavailable)


async def _problem(queue: Queue) -> tuple[str, Exception] | None:
    """Return why a database cannot be used, if so. A periodic small write finds out whether it accepts writes."""
    store = queue.engine.store
    try:
        async with asyncio.timeout(MAX_SEC):
            await store.read(lambda tx: tx.one("read_workspace", name="default"))
    except (ShiftworkError, TimeoutError) as error:
        return "the store does not answer", error
    return None if store.refusal is None else ("the store accepts no writes", store.refusal)


def _unavailable(context: RequestContext, what: str, error: Exception) -> Response:
    """Answer without the error, which may name the database: anyone may call this. The log has it."""
    log.warning("not ready: %s: %s", what, str(error) or "timed out")
    return _unready(_health(context, "unavailable", what))


def _unready(health: Health) -> Response:
    return Response(msgspec.json.encode(health), 503, {"retry-after": "1"}, "application/json")
