"""The queue's events in `stream:events`, each once and in order: its number in the log is its message id."""

from __future__ import annotations

import msgspec

from shiftwork.bridges.redis.desk import Desk
from shiftwork.bridges.redis.sight import parse
from shiftwork.queue.read import Event

QUIET = frozenset({"task.heartbeat", "task.progress"})
"""What comes so often that it would drown the rest; it stands in the log."""

BATCH = 500


async def tell(desk: Desk, keep: int) -> int:
    """Add what has happened since the last event that stands there; how many."""
    saved = await _saved(desk)
    after = await _last(desk, saved)
    events, last = await desk.queue.events(after, limit=BATCH)
    told = [event for event in events if not QUIET.issuperset(event.names)]
    if told:
        await _add(desk, told, keep)
    if last != saved:
        await desk.note("told_upto", workspace=desk.bridge.workspace, name=desk.bridge.name, seq=last)
    return len(told)


async def _saved(desk: Desk) -> int | None:
    rows = await desk.rows("list_bridges")
    return next((row["events_after"] for row in rows if row["name"] == desk.bridge.name), None)


async def _last(desk: Desk, saved: int | None) -> int:
    """Where to go on: what the stream says, or the store where Redis has lost it; at first with what comes now."""
    known = 0
    if await desk.redis.exists(desk.streams.events):
        known = parse((await desk.redis.xinfo_stream(desk.streams.events))["last-generated-id"])[0]
    if saved is None and not known:
        return await desk.queue.newest_event()
    return max(known, saved or 0)


async def _add(desk: Desk, events: list[Event], keep: int) -> None:
    """One that stands there already, because another bridge was faster, is refused by its id."""
    async with desk.redis.pipeline(transaction=False) as pipe:
        for event in events:
            pipe.xadd(desk.streams.events, _fields(event), id=f"{event.seq}-0", maxlen=keep, approximate=True)
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
