"""A clock that an observer can move on a server started with `--test-clock`."""

from __future__ import annotations

from typing import Any

from shiftwork.core.errors import IdempotencyKeyReused, NotFound
from shiftwork.duties.runner import run_once
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors
from shiftwork.wire.shapes import ClockBody, ClockReply

door = Doors("Testing")


@door("POST /api/testing/clock", "admin", body=ClockBody, answer=ClockReply, errors=(NotFound,))
async def move_clock(ask: Ask, body: ClockBody) -> Any:
    """Move the server's clock on, and run the duties that come due. Only on a server with a test clock."""
    clock = ask.house.clock
    if clock is None:
        raise NotFound("this server has no test clock", mend="Start it with `shiftwork serve --test-clock`.")
    once = ask.queue.caller.once
    if once is not None and once.key in clock.moves:
        fingerprint, told = clock.moves[once.key]
        if fingerprint != once.fingerprint:
            raise IdempotencyKeyReused(f"the key {once.key!r} belongs to another request", where="Idempotency-Key")
        return told
    clock.advance(body.advance_sec)
    reply = ClockReply(ask.queue.now(), await run_once(ask.queue.engine))
    if once is not None:
        clock.moves[once.key] = once.fingerprint, reply
    return reply
