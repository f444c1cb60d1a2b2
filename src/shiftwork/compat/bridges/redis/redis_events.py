"""Publishes the queue's events in `stream:events`, each once and in order; message ids are event numbers."""

from __future__ import annotations

import msgspec

from shiftwork.compat.bridges.redis.bridge_context import BridgeContext
from shiftwork.compat.bridges.redis.stream_state import parse
from shiftwork.model.history import Event

QUIET = frozenset({"task.heartbeat", "task.progress"})
"""Events too frequent to publish; they are only in the log."""

BATCH = 500


async def publish_events(context: BridgeContext, keep: int) -> int:
    """Publish events after the last one in the stream; returns how many."""
    saved = await _saved(context)
    after = await _last(context, saved)
    news = await context.queue.events(after, limit=BATCH)
    events, last = news.events, news.next
    published = [event for event in events if not QUIET.issuperset(event.names)]
    if published:
        await _add(context, published, keep)
    if last != saved:
        await context.execute("mark_published", workspace=context.bridge.workspace, name=context.bridge.name, seq=last)
    return len(published)


async def _saved(context: BridgeContext) -> int | None:
    rows = await context.rows("list_bridges")
    return next((row["events_after"] for row in rows if row["name"] == context.bridge.name), None)


async def _last(context: BridgeContext, saved: int | None) -> int:
    """Where to continue: the stream's last id, or the store's if Redis lost it; a new bridge starts with new events."""
    known = 0
    if await context.redis.exists(context.streams.events):
        known = parse((await context.redis.xinfo_stream(context.streams.events))["last-generated-id"])[0]
    if saved is None and not known:
        return (await context.queue.events("now")).next
    return max(known, saved or 0)


async def _add(context: BridgeContext, events: list[Event], keep: int) -> None:
    """Redis refuses, by its id, an event that another bridge has already added."""
    async with context.redis.pipeline(transaction=False) as pipe:
        for event in events:
            pipe.xadd(context.streams.events, _fields(event), id=f"{event.seq}-0", maxlen=keep, approximate=True)
        answers = await pipe.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception) and "equal or smaller" not in str(answer):
            raise answer


def _fields(event: Event) -> dict[str, str]:
    return {
        "event": event.names[0] if event.names else event.verb,
        "names": ",".join(event.names),
        "task_id": event.task_id or "",
        "at": f"{event.at:.6f}",
        "actor": event.actor,
        "reason": event.reason or "",
        "data": msgspec.json.encode(event.data).decode() if event.data else "",
    }
