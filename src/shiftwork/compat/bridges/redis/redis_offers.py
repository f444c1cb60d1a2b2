"""Offers work in `stream:task`, removes entries that are no longer on offer, and reclaims those of silent workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from shiftwork.compat.bridges.redis import lua_scripts
from shiftwork.compat.bridges.redis.bridge_context import PAGE, BridgeContext
from shiftwork.compat.bridges.redis.fields import GROUP, Order, task_out
from shiftwork.compat.bridges.redis.redis_results import refuse
from shiftwork.compat.bridges.redis.stream_state import StreamState, after
from shiftwork.compat.external.model import Offer
from shiftwork.compat.external.offered_work import publish, withdraw
from shiftwork.model import ids
from shiftwork.store.store import Row


async def offer(context: BridgeContext, ahead: int) -> int:
    """Offer more work while fewer than `ahead` entries are unread; returns how many entries were written."""
    if await context.rows("anything_ready"):
        await context.run(publish, ahead)
    return await write(context)


async def write(context: BridgeContext) -> int:
    """Write the entries of offers without one, including those that another bridge left unfinished."""
    placed = []
    for row in await context.rows("unwritten", bridge=context.bridge.name):
        keys = [context.streams.task, context.streams.published]
        parts = [part for field in task_out(_order(row)).items() for part in field]
        message_id = await context.call(lua_scripts.PUBLISH, keys, _mark(Offer(row["task_id"], row["number"])), *parts)
        placed.append((row["task_id"], row["number"], message_id))
    if placed:
        await context.execute("place_published", items=placed)
    return len(placed)


def _mark(offer: Offer) -> str:
    return f"{ids.show_task(offer.task_id)}.{offer.number}"


def _order(row: Row) -> Order:
    body = msgspec.json.decode(row["body"])
    shown = ids.show_task(row["task_id"])
    return Order(
        shown,
        body.get("tool_name"),
        body.get("payload") or {},
        row["idempotency_key"] or shown,
        row["attempts"],
        row["type"],
        body.get("traceparent"),
    )


async def is_known(context: BridgeContext, offer_: Offer, message_id: str) -> bool:
    """Whether Redis still knows this offer. A worker may delete its entry; only a loss of data removes both."""
    async with context.redis.pipeline(transaction=True) as pipe:
        pipe.hexists(context.streams.published, _mark(offer_))
        pipe.xrange(context.streams.task, message_id, message_id)
        return any(await pipe.execute())


async def remove(context: BridgeContext, ended: Sequence[tuple[Offer, str | None]]) -> None:
    """Acknowledge and delete the entries of ended offers."""
    if not ended:
        return
    async with context.redis.pipeline(transaction=True) as pipe:
        for offer_, message_id in ended:
            if message_id is not None:
                pipe.xack(context.streams.task, GROUP, message_id)
                pipe.xdel(context.streams.task, message_id)
            pipe.hdel(context.streams.published, _mark(offer_))
        await pipe.execute()
    await context.execute("forget_published", items=sorted(offer_ for offer_, _ in ended))


async def withdraw_unread(context: BridgeContext, unwanted: Sequence[tuple[Offer, str]]) -> int:
    """Withdraw entries not delivered yet; returns how many."""
    keys = [context.streams.task, context.streams.published]
    gone = [
        offer_
        for offer_, message_id in unwanted
        if await context.call(lua_scripts.WITHDRAW, keys, GROUP, message_id, _mark(offer_))
    ]
    if gone:
        await context.run(withdraw, gone)
    return len(gone)


async def reoffer_lost(context: BridgeContext, waiting: Sequence[tuple[Offer, str]]) -> int:
    """Offer tasks again whose entries Redis has lost; returns how many."""
    async with context.redis.pipeline(transaction=False) as pipe:
        for _, message_id in waiting:
            pipe.xrange(context.streams.task, message_id, message_id)
        entries = await pipe.execute() if waiting else []
    return await withdraw_unread(context, [each for each, entry in zip(waiting, entries, strict=True) if not entry])


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
