"""Deliveries: one notification to one sink each, written once, leased, sent, and recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from shiftwork.engine import read
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.model import ids
from shiftwork.model.history import Event
from shiftwork.notifications import policy
from shiftwork.notifications.model import ALERT, Notification, OutgoingDelivery, SinkFilter, SinkTarget, Status
from shiftwork.notifications.notification_context import NotificationContext, bounded
from shiftwork.notifications.policy import AlertFacts, DeliveryOutcome
from shiftwork.observe.alert_conditions import Finding, compare
from shiftwork.store.store import Row, Tx

Source = Literal["event", "alert"]
LEASE_SEC = 60.0
"""Longer than any attempt: a delivery without a recorded outcome by then is sent again."""

MAX_DATA = 16_384
BATCH = 500
KEEP_SEC = 7 * 86_400.0
"""How long ended deliveries can be read and sent again."""

NO_CONTEXT = NotificationContext()
_MOVE: dict[Source, str] = {"event": "move_event_cursors", "alert": "move_alert_cursors"}


class PendingNotification(NamedTuple):
    """The event or alert to notify sinks of."""

    sink_id: str
    workspace: str
    seq: int | None
    notification: Notification


def of_events(
    rows: Sequence[Row], sinks: Sequence[Row], context: NotificationContext = NO_CONTEXT
) -> list[PendingNotification]:
    """The deliveries of these events to these sinks, one per event name."""
    wants = [(sink, filter_of(sink)) for sink in sinks]
    found = []
    for event in map(read.event, rows):
        for sink, wanted in wants:
            if sink["workspace"] == event.workspace_id:
                names = policy.wanted_names(wanted, event.names, event.type)
                found += [
                    PendingNotification(sink["id"], sink["workspace"], event.seq, _of_event(event, name, context))
                    for name in names
                ]
    return found


def _of_event(event: Event, name: str, context: NotificationContext) -> Notification:
    about: dict[str, Any] = {"workspace_id": event.workspace_id, "task_id": event.task_id, "dag_id": event.dag_id}
    about |= {"task_type": event.type, "seq": event.seq, "path": event.path, "actor": event.actor}
    about |= {"reason": event.reason, "data": _bounded(event.data or {})}
    about |= context.link(event.workspace_id, event.task_id)
    return Notification(name, policy.timestamp(event.at), policy.redact(about))


def of_alerts(
    rows: Sequence[Row], sinks: Sequence[Row], context: NotificationContext = NO_CONTEXT
) -> list[PendingNotification]:
    """The deliveries of these alerts to these sinks."""
    wants = [(sink, filter_of(sink)) for sink in sinks]
    found = []
    for row in rows:
        data = msgspec.json.decode(row["data"])
        about = AlertFacts(row["kind"], row["severity"], row["type"] or data.get("type"), data.get("creator"))
        for sink, wanted in wants:
            if sink["workspace"] == row["workspace"] and policy.wants_alert(wanted, about):
                made = _of_alert(row, about, data, context)
                found.append(PendingNotification(sink["id"], row["workspace"], row["seq"], made))
    return found


def _of_alert(row: Row, about: AlertFacts, data: dict[str, Any], context: NotificationContext) -> Notification:
    found = {"workspace_id": row["workspace"], "seq": row["seq"], "kind": about.kind, "severity": about.severity}
    found |= {"message": row["message"], "task_type": about.type, "data": _bounded(data)}
    found["task_id"] = None if row["task_id"] is None else ids.show_task(row["task_id"])
    found |= context.link(row["workspace"], found["task_id"])
    if question := context.about(about.kind, row["task_id"]).get("about"):
        found["about"] = bounded(question, MAX_DATA)
    return Notification(ALERT, policy.timestamp(row["at"]), policy.redact(found))


def _bounded(data: dict[str, Any]) -> dict[str, Any]:
    """Bound an event's data, which can be large: a receiver can read the event by its number."""
    return data if len(as_json(data)) <= MAX_DATA else {"left_out": "too large"}


async def write(tx: Tx, engine: Engine, source: Source, read_for: Sequence[str], part: tuple[int, int],
                wanted: Sequence[PendingNotification]) -> int:  # fmt: skip
    """Write the deliveries found between two event numbers, and move the sinks' cursors, together.

    A sink whose cursor another process has moved is skipped.
    """
    after, last = part
    items = [(sink_id,) for sink_id in sorted(read_for)]
    rows = await tx.all("lock_sinks_at", items=items, source=source, after=after)
    still = {row["id"] for row in rows}
    new = [each for each in wanted if each.sink_id in still]
    await tx.insert("insert_deliveries", delivery_rows(tx, engine, source, new))
    if still:
        await tx.run(_MOVE[source], items=[(sink_id,) for sink_id in sorted(still)], last=last)
    return len(new)


def delivery_rows(tx: Tx, engine: Engine, source: str, new: Sequence[PendingNotification]) -> list[tuple[Any, ...]]:
    made = engine.ids.make_many(tx.now, len(new)) if new else []
    return [
        (ids.show_delivery(uuid), each.workspace, each.sink_id, source, each.seq)
        + (
            each.notification.type,
            policy.line(each.notification),
            as_json(each.notification),
            "pending",
            tx.now,
            tx.now,
        )
        for uuid, each in zip(made, new, strict=True)
    ]


async def lease(tx: Tx, engine: Engine, busy: Mapping[str, int], room: int) -> list[OutgoingDelivery]:
    """Lease due deliveries; each sink has its own share of the capacity, a failing one a small share."""
    taken: list[OutgoingDelivery] = []
    due = list(await tx.all("sinks_with_due", now=tx.now))
    engine.random.shuffle(due)  # when more are due than there is capacity for
    for sink in due:
        count = min(room - len(taken), policy.at_once(sink["failures"]) - busy.get(sink["id"], 0))
        if count > 0:
            times = {"now": tx.now, "until": tx.now + LEASE_SEC, "give_up": tx.now + policy.GIVE_UP_SEC}
            rows = await tx.all("lease_deliveries", sink=sink["id"], count=count, **times)
            taken += [_outgoing(row, sink) for row in rows]
    return taken


def _outgoing(row: Row, sink: Row) -> OutgoingDelivery:
    notification = msgspec.json.decode(row["notification"], type=Notification)
    return OutgoingDelivery(row["id"], sink["id"], row["attempts"], row["give_up_at"], notification, place_of(sink))


async def is_due(tx: Tx) -> bool:
    return await tx.one("sinks_with_due", now=tx.now) is not None


async def record(tx: Tx, engine: Engine, delivery: OutgoingDelivery, outcome: DeliveryOutcome) -> Status | None:
    """Record an attempt's outcome for the delivery and its sink; None if a later attempt exists."""
    then = policy.after(outcome, delivery.attempts, tx.now, delivery.give_up_at, engine.random.random())
    ended_at = None if then.status == "pending" else tx.now
    fields = {"status": then.status, "next_at": then.next_at, "ended_at": ended_at, "error": outcome.error}
    if await tx.one("end_delivery", id=delivery.id, attempts=delivery.attempts, **fields) is None:
        return None
    if outcome.error is None:
        await _answered(tx, engine, delivery.sink_id)
    else:
        await _failed(tx, engine, delivery.sink_id, outcome, given_up=then.status == "dead")
    return then.status


async def _answered(tx: Tx, engine: Engine, sink_id: str) -> None:
    row = await tx.one("sink_answered", id=sink_id)
    if row is not None:
        await _emit(tx, engine, row["workspace"])


async def _failed(tx: Tx, engine: Engine, sink_id: str, outcome: DeliveryOutcome, *, given_up: bool) -> None:
    sink = await tx.one("lock_sink_by_id", id=sink_id)
    if sink is None:
        return
    failures = sink["failures"] + 1
    rests_until = tx.now + policy.rest(outcome, failures)
    failing = bool(sink["failing"]) or given_up
    fields = {"failures": failures, "rests_until": rests_until, "failing": failing, "error": outcome.error}
    await tx.run("sink_failed", id=sink_id, **fields)
    if outcome.gone and sink["paused_at"] is None:
        await tx.run("pause_sink", id=sink_id, now=tx.now, reason=outcome.error)
    if given_up:
        await _emit(tx, engine, sink["workspace"])


async def _emit(tx: Tx, engine: Engine, workspace: str) -> None:
    work = UnitOfWork(tx, engine, Caller("maintenance:notifications"))
    await alert_failing(work, workspace)
    await work.save_events()


async def forget(tx: Tx) -> int:
    """Remove old ended deliveries, and those of removed sinks, a batch at a time."""
    if await tx.one("any_sink") is None:
        return 0
    gone = len(await tx.all("delete_old_deliveries", before=tx.now - KEEP_SEC, count=BATCH))
    for sink in await tx.all("removed_sinks", count=BATCH):
        if gone >= BATCH:
            break
        left = await tx.all("delete_deliveries_of", sink=sink["id"], count=BATCH - gone)
        gone += len(left)
        if gone < BATCH:
            await tx.run("delete_sink", id=sink["id"])
    return gone


async def alert_failing(work: UnitOfWork, workspace: str) -> None:
    """Raise one alert per sink that lost a notification, until one arrives there."""
    rows = await work.tx.all("failing_sinks", workspace=workspace)
    found = [Finding(row["name"], "sink_failing", {"error": row["last_error"]}) for row in rows]
    await compare(work, workspace, "sink", found)


def filter_of(row: Row) -> SinkFilter:
    return msgspec.json.decode(row["wants"], type=SinkFilter)


def place_of(row: Row) -> SinkTarget:
    """With the secret as it is stored; the notification sender opens it."""
    kept = (row["secret"], row["server"], row["sender"])
    return SinkTarget(row["kind"], row["address"], *kept, allow_private=bool(row["allow_private"]))
