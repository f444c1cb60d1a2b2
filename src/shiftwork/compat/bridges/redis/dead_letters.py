"""Mirrors dead letters in `stream:dlq`: each stays there while it waits for a person, or if it was abandoned."""

from __future__ import annotations

import msgspec

from shiftwork.compat.bridges.redis.bridge_context import PAGE, BridgeContext
from shiftwork.compat.bridges.redis.fields import letter_out, marked
from shiftwork.model import ids
from shiftwork.store import crash_points

WRITE = """
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known and #redis.call('XRANGE', KEYS[1], known, known) > 0 then return known end
local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
redis.call('HSET', KEYS[2], ARGV[1], id)
return id
"""


async def write(context: BridgeContext) -> int:
    """Add missing dead letters; returns how many."""
    written = []
    for row in await context.rows("letters_to_write", count=PAGE):
        shown, body = ids.show_task(row["task_id"]), msgspec.json.decode(row["body"])
        letter = letter_out(shown, body, row["error"] or row["reason"], row["attempts"], row["dead_lettered_at"])
        parts = [part for field in marked(letter).items() for part in field]
        keys = [context.streams.dlq, context.streams.published]
        message_id = await context.call(WRITE, keys, f"{shown}/{row['round']}", *parts)
        written.append((row["task_id"], row["round"], context.bridge.workspace, context.bridge.name, message_id))
    if written:
        await crash_points.named(
            "redis bridge", context.queue.engine.store.run(lambda tx: tx.insert("insert_letter_entries", written))
        )
    return len(written)


async def remove(context: BridgeContext) -> int:
    """Remove reviewed dead letters, unless they were abandoned; returns how many."""
    rows = await context.rows("letters_to_remove", bridge=context.bridge.name, count=PAGE)
    if not rows:
        return 0
    async with context.redis.pipeline(transaction=True) as pipe:
        for row in rows:
            pipe.xdel(context.streams.dlq, row["message_id"])
            pipe.hdel(context.streams.published, f"{ids.show_task(row['task_id'])}/{row['round']}")
        await pipe.execute()
    await context.execute("forget_letter_entries", items=[(row["task_id"], row["round"]) for row in rows])
    return len(rows)


async def find_lost(context: BridgeContext) -> int:
    """Forget entries that Redis has lost, so that they are written again; returns how many."""
    rows = await context.rows("letters_written", bridge=context.bridge.name)
    async with context.redis.pipeline(transaction=False) as pipe:
        for row in rows:
            pipe.xrange(context.streams.dlq, row["message_id"], row["message_id"])
        there = await pipe.execute() if rows else []
    lost = [(row["task_id"], row["round"]) for row, entry in zip(rows, there, strict=True) if not entry]
    if lost:
        await context.execute("forget_letter_entries", items=lost)
    return len(lost)
