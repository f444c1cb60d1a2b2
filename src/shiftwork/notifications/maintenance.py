"""The outbox: reads the event log once for all sinks and writes their deliveries.

So notifications cost the verbs nothing, and none can be lost or written twice: the cursor of a sink moves in the
transaction that writes its deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from shiftwork.engine import event_log
from shiftwork.engine.engine import Engine
from shiftwork.notifications import deliveries
from shiftwork.notifications.deliveries import PendingNotification, Source, filter_of
from shiftwork.notifications.notification_context import NotificationContext, load
from shiftwork.store.store import Row, Tx

PAGE = 500
MAX_PAGES = 100
"""Pages per run; the rest is left to the next run."""

MAX_PENDING = 10_000
"""The log is not read further for a sink with this many pending deliveries."""

Counts = dict[str, int]


async def forget(tx: Tx, _engine: Engine) -> Counts:
    """Delete deliveries that ended long ago, and those of removed sinks."""
    gone = await deliveries.forget(tx)
    return {"forgotten": gone} if gone else {}


async def fill(engine: Engine) -> Counts:
    """Write a delivery for everything new that a sink wants."""
    written = 0
    for _ in range(MAX_PAGES):
        rows = await engine.store.read(lambda tx: tx.all("sinks_to_read_for", most=MAX_PENDING))
        events = [row for row in rows if filter_of(row).events]
        alerts = [row for row in rows if filter_of(row).alerts]
        moved = [await _events(engine, after, group) for after, group in _by(events, "events_after")]
        moved += [await _alerts(engine, after, group) for after, group in _by(alerts, "alerts_after")]
        written += sum(count for count, _ in moved)
        if not any(whole for _, whole in moved):
            break
    return {"written": written} if written else {}


def _by(rows: Sequence[Row], cursor: str) -> list[tuple[int, list[Row]]]:
    """Group sinks by cursor, so that the next events are read once per group."""

    def place(row: Row) -> int:
        return int(row[cursor])

    return [(after, list(group)) for after, group in groupby(sorted(rows, key=place), place)]


async def _events(engine: Engine, after: int, sinks: Sequence[Row]) -> tuple[int, bool]:
    workspaces = {row["workspace"] for row in sinks}
    part = await event_log.read(engine.store, after, PAGE, workspaces.pop() if len(workspaces) == 1 else None)
    context = await engine.store.read(lambda tx: load(tx, [])) if part.rows else NotificationContext()
    found = (after, part.last)
    return await _write(engine, "event", sinks, found, lambda: deliveries.of_events(part.rows, sinks, context))


async def _alerts(engine: Engine, after: int, sinks: Sequence[Row]) -> tuple[int, bool]:
    part = await event_log.read_alerts(engine.store, after, PAGE)
    context = await engine.store.read(lambda tx: load(tx, part.rows)) if part.rows else NotificationContext()
    found = (after, part.last)
    return await _write(engine, "alert", sinks, found, lambda: deliveries.of_alerts(part.rows, sinks, context))


async def _write(
    engine: Engine,
    source: Source,
    sinks: Sequence[Row],
    part: tuple[int, int],
    find: Callable[[], list[PendingNotification]],
) -> tuple[int, bool]:
    """Write a page's deliveries; returns how many, and whether the page was full."""
    after, last = part
    if last == after:
        return 0, False
    found = find()
    ids = [row["id"] for row in sinks]
    written = await engine.store.run(lambda tx: deliveries.write(tx, engine, source, ids, part, found))
    return written, last - after >= PAGE
