"""One scan of a bridge that dies at a point: `python -m tests.bridges.redis.mortal STORE REDIS POINT`."""

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from shiftwork import Queue
from shiftwork.compat.bridges.redis import redis_offers, redis_results
from shiftwork.compat.bridges.redis.bridge_context import BridgeContext
from tests.bridges.redis.streams import orchestrator

Step = Callable[..., Coroutine[Any, Any, Any]]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(step: Step, verb: str | None = None) -> Step:
    """Wrap a step so that the process dies after it, if it did something for this verb."""

    @functools.wraps(step)
    async def run(*args: Any, **named: Any) -> Any:
        answer = await step(*args, **named)
        if answer and (verb is None or getattr(args[1], "__name__", "") == verb):
            die()
        return answer

    return run


def before(step: Step, statement: str | None = None) -> Step:
    """Wrap a step so that the process dies before it, or before this statement."""

    @functools.wraps(step)
    async def run(*args: Any, **named: Any) -> Any:
        if statement is None or args[1] == statement:
            die()
        return await step(*args, **named)

    return run


def arm(point: str) -> None:
    """Place kills before and after each interaction with the store and Redis."""
    if point == "published: committed":
        BridgeContext.run = after(BridgeContext.run, "publish")  # type: ignore[method-assign]  # made to die
    elif point == "published: written":
        BridgeContext.call = after(BridgeContext.call)  # type: ignore[method-assign]  # made to die
    elif point == "heard: committed":
        redis_results._acknowledge = before(redis_results._acknowledge)
    elif point == "ended: removed":
        BridgeContext.execute = before(BridgeContext.execute, "forget_published")  # type: ignore[method-assign]  # made to die
    elif point == "recovered":
        redis_offers.recover = after(redis_offers.recover)


async def main(store: str, redis: str, point: str) -> None:
    arm(point)
    async with Queue.open(store) as queue:
        bridge = orchestrator(queue, redis)
        await bridge.run_once()
        await bridge.context.redis.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
