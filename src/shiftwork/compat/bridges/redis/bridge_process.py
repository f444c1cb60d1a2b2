"""Runs a bridge as a process that polls and survives outages of Redis and of the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from shiftwork.compat.bridges.redis.bridge_context import BridgeContext, Role, connect
from shiftwork.compat.bridges.redis.fields import GROUP
from shiftwork.compat.bridges.redis.foreign_orchestrator import ForeignGroup
from shiftwork.compat.bridges.redis.orchestrator import Options as Looking
from shiftwork.compat.bridges.redis.orchestrator import Orchestrator
from shiftwork.compat.bridges.redis.redis_offers import ReclaimCommand
from shiftwork.compat.external.model import Bridge
from shiftwork.model.errors import RedisUnavailable, ShiftworkError
from shiftwork.queue import Queue

log = logging.getLogger("shiftwork.compat.bridges")
WAIT_MS = 200
"""How long a pass waits for results of workers before it checks the rest."""
THOROUGH_SEC = 5.0
MIN_PAUSE_SEC, MAX_PAUSE_SEC = 0.1, 10.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a bridge process."""

    redis_url: str
    role: Role = "orchestrator"
    name: str = "redis"
    prefix: str = ""
    types: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    ahead: int = 100
    reclaim: ReclaimCommand | None = None
    events: bool = False
    keep: int = 10_000


class BridgeRole(Protocol):
    """One of the protocol's two sides."""

    async def run_once(self, *, thorough: bool = True, wait_ms: int | None = None) -> int:
        """Run one pass over the queue and the streams; returns the number of changes."""


@asynccontextmanager
async def open_side(queue: Queue, options: Options) -> AsyncIterator[Orchestrator | ForeignGroup]:
    """Open the side of the protocol that the options name."""
    redis = connect(options.redis_url)
    bridge = Bridge(queue.workspace, options.name, GROUP, options.types or None, options.capabilities)
    context = BridgeContext(queue, redis, bridge, options.prefix, options.role)
    try:
        if options.role == "worker":
            yield ForeignGroup(context, ahead=options.ahead)
        else:
            yield Orchestrator(context, Looking(options.ahead, options.reclaim, options.events, options.keep))
    finally:
        await redis.aclose()


async def poll(side: BridgeRole, *, thorough: bool = True, wait_ms: int | None = None) -> int:
    """Run one pass, and translate Redis errors into the queue's errors."""
    from redis.exceptions import RedisError  # noqa: PLC0415  # an extra

    try:
        return await side.run_once(thorough=thorough, wait_ms=wait_ms)
    except (RedisError, OSError) as error:
        raise RedisUnavailable(f"Redis is unavailable: {error}", where="--redis-url") from error


async def poll_until(side: BridgeRole, stopped: asyncio.Event) -> None:
    """Run passes until stopped: thorough at first, every few seconds, and after an error.

    Checks for the stop after each pass, since a pass may swallow its cancellation (see `until_stopped` of the command).
    """
    loop, due, pause = asyncio.get_running_loop(), 0.0, MIN_PAUSE_SEC
    while not stopped.is_set():
        thorough = loop.time() >= due
        try:
            await poll(side, thorough=thorough, wait_ms=WAIT_MS)
        except ShiftworkError as error:
            log.warning("the bridge will retry: %s", error)
            await asyncio.sleep(pause)
            due, pause = 0.0, min(2 * pause, MAX_PAUSE_SEC)
        else:
            due, pause = loop.time() + THOROUGH_SEC if thorough else due, MIN_PAUSE_SEC
