"""Reclaims entries from workers that were silent for the visibility timeout."""

from __future__ import annotations

from typing import Literal

from shiftwork.compat.bridges.redis.bridge_context import PAGE, BridgeContext
from shiftwork.compat.bridges.redis.fields import GROUP
from shiftwork.compat.bridges.redis.redis_results import refuse
from shiftwork.compat.bridges.redis.stream_state import StreamState, after

ReclaimCommand = Literal["xautoclaim", "xclaim"]
XAUTOCLAIM_SINCE = (6, 2)


async def supported_command(context: BridgeContext) -> ReclaimCommand:
    """XAUTOCLAIM if the server supports it, otherwise XCLAIM."""
    version = str((await context.redis.info("server"))["redis_version"])
    known = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return "xautoclaim" if known >= XAUTOCLAIM_SINCE else "xclaim"


async def recover(context: BridgeContext, command: ReclaimCommand, visibility_sec: float) -> int:
    """Claim entries idle for this long; the next pass finds them with us. Returns how many."""
    idle = int(visibility_sec * 1000)
    return await (_xautoclaim if command == "xautoclaim" else _xclaim)(context, idle)


async def _xautoclaim(context: BridgeContext, idle: int) -> int:
    start, found = "0-0", 0
    while True:
        answer = await context.redis.xautoclaim(
            context.streams.task, GROUP, context.us, idle, start, count=PAGE, justid=False
        )
        start, found = answer[0], found + len(answer[1])
        if start == "0-0":
            return found


async def _xclaim(context: BridgeContext, idle: int) -> int:
    """For servers before 6.2, whose XPENDING cannot filter by idle time either."""
    first, found = "-", 0
    while True:
        page = await context.redis.xpending_range(context.streams.task, GROUP, first, "+", PAGE)
        late = [each["message_id"] for each in page if each["time_since_delivered"] >= idle]
        if late:
            # XCLAIM skips entries that are no longer idle: a worker that came back keeps its entry.
            found += len(await context.redis.xclaim(context.streams.task, GROUP, context.us, idle, late))
        if len(page) < PAGE:
            return found
        first = after(page[-1]["message_id"])


async def refuse_strays(context: BridgeContext, stream_state: StreamState) -> int:
    """Dead-letter reclaimed entries without an offer of ours: otherwise they stay pending forever."""
    reclaimed = {message_id for message_id, consumer in stream_state.pending.items() if consumer == context.us}
    if not reclaimed:
        return 0
    offered = {row["message_id"] for row in await context.rows("open_published", bridge=context.bridge.name)}
    # An entry may have been written by a bridge that died before it could store the message id.
    strays = sorted(reclaimed - offered - set(await context.redis.hvals(context.streams.published)))
    for message_id in strays:
        found = await context.redis.xrange(context.streams.task, message_id, message_id)
        if found:
            await refuse(context, context.streams.task, found[0], "it offers no task of this queue")
        else:
            await context.redis.xack(context.streams.task, GROUP, message_id)
    return len(strays)
