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

    Else 503, and a balancer should go elsewhere. Of the databases of a map one is enough: no other server has more.
    """
    if context.state.stopping.is_set():
        return _unready(_health(context, "stopping"))
    databases = context.state.queue.databases()
    found = await asyncio.gather(*(_problem(each) for each in databases))
    problems = [each for each in found if each is not None]
    if len(problems) == len(databases):
        return _unavailable(context, *problems[0])
    for what, error in problems:
        log.warning("one database of the map: %s: %s", what, str(error) or "timed out")
    away = f"{len(problems)} of {len(databases)} databases cannot be used" if problems else None
    return _health(context, "ok", away)


async def _problem(queue: Queue) -> tuple[str, Exception] | None:
    """What keeps a database from being used."""
    store = queue.engine.store
    try:
        async with asyncio.timeout(MAX_SEC):
            await store.read(lambda tx: tx.one("read_workspace", name="default"))
    except (ShiftworkError, TimeoutError) as error:
        return "the store does not answer", error
    return None if store.refusal is None else ("the store takes no writes", store.refusal)  # a small write finds out


def _unavailable(context: RequestContext, what: str, error: Exception) -> Response:
    """Anyone may ask, and the error may name the database: it is in the log alone."""
    log.warning("not ready: %s: %s", what, str(error) or "timed out")
    return _unready(_health(context, "unavailable", what))


def _unready(health: Health) -> Response:
    return Response(msgspec.json.encode(health), 503, {"retry-after": "1"}, "application/json")
