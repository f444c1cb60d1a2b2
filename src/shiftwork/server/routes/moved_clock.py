"""Advances the clock of a server started with `--test-clock`."""

from __future__ import annotations

from typing import Any

from shiftwork.model.errors import IdempotencyKeyReused, NotFound
from shiftwork.server.endpoint import EndpointGroup
from shiftwork.server.request_context import RequestContext
from shiftwork.wire.shapes import ClockBody, ClockReply

endpoint = EndpointGroup("Testing")


@endpoint("POST /api/testing/clock", "admin", body=ClockBody, answer=ClockReply, errors=(NotFound,))
async def move_clock(context: RequestContext, body: ClockBody) -> Any:
    """Advance the server's clock, and run the maintenance jobs that come due. Only on a server with a test clock."""
    clock = context.state.clock
    if clock is None:
        raise NotFound("this server has no test clock", hint="Start it with `shiftwork serve --test-clock`.")
    request = context.queue.caller.idempotency
    if request is not None and request.key in clock.moves:
        fingerprint, found = clock.moves[request.key]
        if fingerprint != request.fingerprint:
            raise IdempotencyKeyReused(f"the key {request.key!r} belongs to another request", where="Idempotency-Key")
        return found
    from shiftwork.maintenance.loop import run_once  # noqa: PLC0415  # only a test server runs jobs in a request

    clock.advance(body.advance_sec)
    reply = ClockReply(context.queue.now(), await run_once(context.queue.engine))
    if request is not None:
        clock.moves[request.key] = request.fingerprint, reply
    return reply
