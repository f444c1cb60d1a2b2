"""The queue's events in `stream:events`, each once and in order: its number in the log is its message id."""

from __future__ import annotations

import msgspec

from shiftwork.compat.bridges.redis.bridge_context import BridgeContext
from shiftwork.compat.bridges.redis.stream_state import parse
from shiftwork.model.history import Event

QUIET = frozenset({"task.heartbeat", "task.progress"})
"""What comes so often that it would drown the rest; it is in the log."""

BATCH = 500


async def publish_events(context: BridgeContext, keep: int) -> int:
    """Add what has happened since the last event that is there; how many."""
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
    """Where to continue: what the stream says, or the store where Redis has lost it; at first with what comes now."""
    known = 0
    if await context.redis.exists(context.streams.events):
        known = parse((await context.redis.xinfo_stream(context.streams.events))["last-generated-id"])[0]
    if saved is None and not known:
        return (await context.queue.events("now")).next
    return max(known, saved or 0)


async def _add(context: BridgeContext, events: list[Event], keep: int) -> None:
    """One that is there already, because another bridge was faster, is refused by its id."""
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
