"""Offering work in `stream:task`, and removing what is no longer on offer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shiftwork.bridges.redis import scripts
from shiftwork.bridges.redis.desk import Desk
from shiftwork.bridges.redis.fields import GROUP, Order, task_out
from shiftwork.core import ids
from shiftwork.queue.bridged.published import Offer, publish, withdraw
from shiftwork.store.store import Row


async def offer(desk: Desk, ahead: int) -> int:
    """Offer more work while fewer than `ahead` entries are unread; how many entries were written."""
    if await desk.rows("anything_ready"):
        await desk.run(publish, ahead)
    return await write(desk)


async def write(desk: Desk) -> int:
    """Write the entries of offers that have none, also those that another bridge left behind."""
    placed = []
    for row in await desk.rows("unwritten", bridge=desk.bridge.name):
        keys = [desk.streams.task, desk.streams.published]
        parts = [part for field in task_out(_order(row)).items() for part in field]
        message_id = await desk.call(scripts.PUBLISH, keys, _mark(Offer(row["task_id"], row["number"])), *parts)
        placed.append((row["task_id"], row["number"], message_id))
    if placed:
        await desk.note("place_published", items=placed)
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


async def is_known(desk: Desk, offer_: Offer, message_id: str) -> bool:
    """Whether Redis still knows this offer. A worker may delete its entry; only a loss of data removes both."""
    async with desk.redis.pipeline(transaction=True) as pipe:
        pipe.hexists(desk.streams.published, _mark(offer_))
        pipe.xrange(desk.streams.task, message_id, message_id)
        return any(await pipe.execute())


async def remove(desk: Desk, ended: Sequence[tuple[Offer, str | None]]) -> None:
    """Take what has ended out of the stream, and out of everybody's hands."""
    if not ended:
        return
    async with desk.redis.pipeline(transaction=True) as pipe:
        for offer_, message_id in ended:
            if message_id is not None:
                pipe.xack(desk.streams.task, GROUP, message_id)
                pipe.xdel(desk.streams.task, message_id)
            pipe.hdel(desk.streams.published, _mark(offer_))
        await pipe.execute()
    await desk.note("forget_published", items=sorted(offer_ for offer_, _ in ended))


async def take_away(desk: Desk, unwanted: Sequence[tuple[Offer, str]]) -> int:
    """Withdraw what nobody was given yet; how many."""
    keys = [desk.streams.task, desk.streams.published]
    gone = [
        offer_
        for offer_, message_id in unwanted
        if await desk.call(scripts.WITHDRAW, keys, GROUP, message_id, _mark(offer_))
    ]
    if gone:
        await desk.run(withdraw, gone)
    return len(gone)


async def find_lost(desk: Desk, waiting: Sequence[tuple[Offer, str]]) -> int:
    """Offer again what Redis has lost; how many."""
    async with desk.redis.pipeline(transaction=False) as pipe:
        for _, message_id in waiting:
            pipe.xrange(desk.streams.task, message_id, message_id)
        there = await pipe.execute() if waiting else []
    return await take_away(desk, [each for each, entry in zip(waiting, there, strict=True) if not entry])
