"""Liveness and readiness."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from starlette.responses import Response

from shiftwork.compat import views
from shiftwork.model.errors import ShiftworkError
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors
from shiftwork.wire.shapes import Health

log = logging.getLogger("shiftwork.server")
door = Doors("Health")
MAX_SEC = 2.0


def _health(ask: Ask, status: Any, detail: str | None = None) -> Health:
    from shiftwork import __version__  # noqa: PLC0415  # the package is half made while this module is loaded

    store = ask.house.queue.url.partition(":")[0]
    return Health(status, __version__, store, ask.house.clock is not None, detail, views.name_of(ask.house.view))


@door("GET /healthz", None, answer=Health)
async def healthz(ask: Ask) -> Any:
    """The process lives and answers."""
    return _health(ask, "ok")


@door("GET /readyz", None, answer=Health)
async def readyz(ask: Ask) -> Any:
    """It can serve: its store answers and takes writes, and it is not about to stop.

    Else 503, and a balancer should go elsewhere.
    """
    if ask.house.stopping.is_set():
        return _unready(_health(ask, "stopping"))
    try:
        async with asyncio.timeout(MAX_SEC):
            await ask.house.queue.engine.store.read(lambda tx: tx.one("read_workspace", name="default"))
    except (ShiftworkError, TimeoutError) as error:
        return _unavailable(ask, "the store does not answer", error)
    if refusal := ask.house.queue.engine.store.refusal:  # found out by a small write every few seconds
        return _unavailable(ask, "the store takes no writes", refusal)
    return _health(ask, "ok")


def _unavailable(ask: Ask, what: str, error: Exception) -> Response:
    """Anyone may ask, and the error may name the database: it is in the log alone."""
    log.warning("not ready: %s: %s", what, str(error) or "timed out")
    return _unready(_health(ask, "unavailable", what))


def _unready(health: Health) -> Response:
    return Response(msgspec.json.encode(health), 503, {"retry-after": "1"}, "application/json")
