"""Offers work in `stream:task`, and removes entries that are no longer on offer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shiftwork.compat.bridges.redis import lua_scripts
from shiftwork.compat.bridges.redis.bridge_context import BridgeContext
from shiftwork.compat.bridges.redis.fields import GROUP, Order, task_out
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
