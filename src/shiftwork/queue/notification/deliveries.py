"""Deliveries: one notification to one sink each, written once, sent until it arrives or is given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from shiftwork.core import ids, notifications
from shiftwork.core.errors import ConflictError, NotFound
from shiftwork.core.notifications import Notification
from shiftwork.policy import delivery, redact
from shiftwork.policy.delivery import Outcome
from shiftwork.policy.wants import About, wanted_names, wants_alert
from shiftwork.queue import read
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.notification import sinks
from shiftwork.queue.notification.sinks import Place
from shiftwork.queue.read import Event
from shiftwork.queue.work import Work, as_json
from shiftwork.store.store import Row, Tx

Status = Literal["pending", "sent", "dead"]
Source = Literal["event", "alert"]
STATUSES: tuple[Status, ...] = ("pending", "sent", "dead")
LEASE_SEC = 60.0
"""Longer than any attempt takes: a delivery that nobody has ended by then is sent again."""

LARGEST_DATA = 16_384
BATCH = 500
KEEP_SEC = 7 * 86_400.0
"""How long what was sent or given up can be looked at and sent again."""

_MOVE: dict[Source, str] = {"event": "move_event_cursors", "alert": "move_alert_cursors"}


class Delivery(msgspec.Struct, frozen=True):
    """One notification to one sink. Its id is the same at every attempt, so that a receiver knows a repeat."""

    id: str
    workspace_id: str
    sink: str
    type: str
    """The event's name, `alert.raised` or `sink.test`."""
    seq: int | None
    """Of the event or the alert."""
    status: Status
    attempts: int
    created_at: float
    next_at: float | None
    """When it is sent, while it is pending."""
    ended_at: float | None
    error: str | None
    """Why the last attempt failed."""
    message: str
    notification: Notification | None = None
    """All that is sent; only where one delivery is asked for."""


class Wanted(NamedTuple):
    """Something that a sink is to be told of."""

    sink_id: str
    workspace: str
    seq: int
    notification: Notification


class Parcel(NamedTuple):
    """A delivery in the hands of whoever sends it."""

    id: str
    sink_id: str
    attempts: int
    give_up_at: float
    notification: Notification
    place: Place


# -- what is told ------------------------------------------------------------------------------------------------


def of_events(rows: Sequence[Row], told: Sequence[Row]) -> list[Wanted]:
    """What these sinks want to hear of these events, each name of an event by itself."""
    wants = [(sink, sinks.wants_of(sink)) for sink in told]
    found = []
    for event in map(read.event, rows):
        for sink, wanted in wants:
            if sink["workspace"] == event.workspace_id:
                names = wanted_names(wanted, event.names, event.type)
                found += [Wanted(sink["id"], sink["workspace"], event.seq, _of_event(event, name)) for name in names]
    return found


def _of_event(event: Event, name: str) -> Notification:
    about: dict[str, Any] = {"workspace_id": event.workspace_id, "task_id": event.task_id, "dag_id": event.dag_id}
    about |= {"task_type": event.type, "seq": event.seq, "path": event.path, "actor": event.actor}
    about |= {"reason": event.reason, "data": _bounded(event.data or {})}
    return Notification(name, notifications.timestamp(event.at), redact.clean(about))


def of_alerts(rows: Sequence[Row], told: Sequence[Row]) -> list[Wanted]:
    """What these sinks want to hear of these alerts."""
    wants = [(sink, sinks.wants_of(sink)) for sink in told]
    found = []
    for row in rows:
        data = msgspec.json.decode(row["data"])
        about = About(row["kind"], row["severity"], row["type"] or data.get("type"), data.get("creator"))
        for sink, wanted in wants:
            if sink["workspace"] == row["workspace"] and wants_alert(wanted, about):
                found.append(Wanted(sink["id"], row["workspace"], row["seq"], _of_alert(row, about, data)))
    return found


def _of_alert(row: Row, about: About, data: dict[str, Any]) -> Notification:
    told = {"workspace_id": row["workspace"], "seq": row["seq"], "kind": about.kind, "severity": about.severity}
    told |= {"message": row["message"], "task_type": about.type, "data": _bounded(data)}
    told["task_id"] = None if row["task_id"] is None else ids.show_task(row["task_id"])
    return Notification(notifications.ALERT, notifications.timestamp(row["at"]), redact.clean(told))


def _bounded(data: dict[str, Any]) -> dict[str, Any]:
    """An event's own data may be large, and a receiver can ask for it by the event's number."""
    return data if len(as_json(data)) <= LARGEST_DATA else {"left_out": "too large"}


# -- writing -----------------------------------------------------------------------------------------------------


async def write(tx: Tx, engine: Engine, source: Source, read_for: Sequence[str], part: tuple[int, int],
                wanted: Sequence[Wanted]) -> int:  # fmt: skip
    """Write what was found between two numbers, and move the cursors of those it was read for, together.

    A sink for which somebody else has read on meanwhile is left alone.
    """
    after, last = part
    items = [(sink_id,) for sink_id in sorted(read_for)]
    rows = await tx.all("lock_sinks_at", items=items, source=source, after=after)
    still = {row["id"] for row in rows}
    new = [each for each in wanted if each.sink_id in still]
    await tx.insert("insert_deliveries", _rows(tx, engine, source, new))
    if still:
        await tx.run(_MOVE[source], items=[(sink_id,) for sink_id in sorted(still)], last=last)
    return len(new)


def _rows(tx: Tx, engine: Engine, source: str, new: Sequence[Wanted]) -> list[tuple[Any, ...]]:
    made = engine.ids.make_many(tx.now, len(new)) if new else []
    return [
        (ids.show_delivery(uuid), each.workspace, each.sink_id, source, None if source == "test" else each.seq)
        + (
            each.notification.type,
            notifications.line(each.notification),
            as_json(each.notification),
            "pending",
            tx.now,
            tx.now,
        )
        for uuid, each in zip(made, new, strict=True)
    ]


async def test(tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str) -> Delivery:
    """A notification that says nothing but that it arrives."""
    sink = await tx.one("read_sink", workspace=workspace, name=name)
    if sink is None:
        raise NotFound(f"there is no sink {name!r}", where="sink")
    if sink["paused_at"] is not None:
        raise ConflictError(f"the sink {name!r} is paused", where="sink", mend="Resume it first.")
    data = {"workspace_id": workspace, "sink": name, "actor": caller.actor}
    notification = Notification(notifications.TEST, notifications.timestamp(tx.now), redact.clean(data))
    (row,) = _rows(tx, engine, "test", [Wanted(sink["id"], workspace, 0, notification)])
    await tx.insert("insert_deliveries", [row])
    await tx.run("wake_sink", id=sink["id"])
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "sink_tested", data={"sink": name, "delivery": row[0]})
    await work.save_events()
    return await read_one(tx, workspace, row[0])


async def redeliver(tx: Tx, engine: Engine, caller: Caller, workspace: str, delivery_id: str) -> Delivery:
    """Send again what was given up or sent, as the same notification; what is pending is sent anyhow."""
    row = await tx.one("read_delivery", id=delivery_id, workspace=workspace)
    if row is None:
        raise _unknown(delivery_id)
    if await tx.one("redeliver_one", id=delivery_id, now=tx.now) is not None:
        await _tell_redelivered(tx, engine, caller, workspace, row["sink"], row["sink_id"], 1)
    return await read_one(tx, workspace, delivery_id)


async def redeliver_dead(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, before: float | None
) -> tuple[int, float | None]:
    """One batch of all that was given up for a sink: how many, and where to go on."""
    sink = await tx.one("read_sink", workspace=workspace, name=name)
    if sink is None:
        raise NotFound(f"there is no sink {name!r}", where="sink")
    until = tx.now if before is None else before
    rows = await tx.all("redeliver_dead", sink=sink["id"], now=tx.now, before=until, count=BATCH)
    if rows:
        await _tell_redelivered(tx, engine, caller, workspace, name, sink["id"], len(rows))
    return len(rows), until if len(rows) == BATCH else None


async def _tell_redelivered(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, sink_id: str, count: int
) -> None:
    await tx.run("wake_sink", id=sink_id)
    work = Work(tx, engine, caller)
    work.tell_of(workspace, "sink_redelivered", data={"sink": name, "deliveries": count})
    await work.save_events()


# -- sending -----------------------------------------------------------------------------------------------------


async def lease(tx: Tx, engine: Engine, busy: Mapping[str, int], room: int) -> list[Parcel]:
    """Take deliveries that are due; each sink has its own share of the room, and one that fails a small one."""
    taken: list[Parcel] = []
    due = list(await tx.all("sinks_with_due", now=tx.now))
    engine.random.shuffle(due)  # when there are more than there is room for
    for sink in due:
        count = min(room - len(taken), delivery.at_once(sink["failures"]) - busy.get(sink["id"], 0))
        if count > 0:
            times = {"now": tx.now, "until": tx.now + LEASE_SEC, "give_up": tx.now + delivery.GIVE_UP_SEC}
            rows = await tx.all("lease_deliveries", sink=sink["id"], count=count, **times)
            taken += [_parcel(row, sink) for row in rows]
    return taken


def _parcel(row: Row, sink: Row) -> Parcel:
    notification = msgspec.json.decode(row["notification"], type=Notification)
    return Parcel(row["id"], sink["id"], row["attempts"], row["give_up_at"], notification, sinks.place_of(sink))


async def is_due(tx: Tx) -> bool:
    return await tx.one("sinks_with_due", now=tx.now) is not None


async def record(tx: Tx, engine: Engine, parcel: Parcel, outcome: Outcome) -> Status | None:
    """What an attempt came to, for the delivery and for its sink; None where the attempt is no longer the last."""
    then = delivery.after(outcome, parcel.attempts, tx.now, parcel.give_up_at, engine.random.random())
    ended_at = None if then.status == "pending" else tx.now
    fields = {"status": then.status, "next_at": then.next_at, "ended_at": ended_at, "error": outcome.error}
    if await tx.one("end_delivery", id=parcel.id, attempts=parcel.attempts, **fields) is None:
        return None
    if outcome.error is None:
        await _answered(tx, engine, parcel.sink_id)
    else:
        await _failed(tx, engine, parcel.sink_id, outcome, given_up=then.status == "dead")
    return then.status


async def _answered(tx: Tx, engine: Engine, sink_id: str) -> None:
    row = await tx.one("sink_answered", id=sink_id)
    if row is not None:
        await _tell(tx, engine, row["workspace"])


async def _failed(tx: Tx, engine: Engine, sink_id: str, outcome: Outcome, *, given_up: bool) -> None:
    sink = await tx.one("lock_sink_by_id", id=sink_id)
    if sink is None:
        return
    failures = sink["failures"] + 1
    rests_until = tx.now + delivery.rest(outcome, failures)
    failing = bool(sink["failing"]) or given_up
    fields = {"failures": failures, "rests_until": rests_until, "failing": failing, "error": outcome.error}
    await tx.run("sink_failed", id=sink_id, **fields)
    if outcome.gone and sink["paused_at"] is None:
        await tx.run("pause_sink", id=sink_id, now=tx.now, reason=outcome.error)
    if given_up:
        await _tell(tx, engine, sink["workspace"])


async def _tell(tx: Tx, engine: Engine, workspace: str) -> None:
    work = Work(tx, engine, Caller("duty:notifications"))
    await sinks.tell_failing(work, workspace)
    await work.save_events()


async def forget(tx: Tx) -> int:
    """Remove what ended long ago, and what belongs to sinks that were removed, a batch at a time."""
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


# -- reading -----------------------------------------------------------------------------------------------------


class Which(NamedTuple):
    """Which deliveries, newest first."""

    sink: str | None
    status: Status | None
    after: str | None
    limit: int


async def read_page(tx: Tx, workspace: str, which: Which) -> list[Delivery]:
    if which.sink is not None:
        sink = await tx.one("read_sink", workspace=workspace, name=which.sink)
        if sink is None:
            return []
        which = which._replace(sink=sink["id"])
    name = "list_deliveries" if which.status in {None, "sent"} else "list_unsent_deliveries"
    page = {"sink": which.sink, "status": which.status, "after": which.after, "count": which.limit}
    rows = await tx.all(name, workspace=workspace, **page)
    return [_delivery(row) for row in rows]


async def read_one(tx: Tx, workspace: str, delivery_id: str) -> Delivery:
    row = await tx.one("read_delivery", id=delivery_id, workspace=workspace)
    if row is None:
        raise _unknown(delivery_id)
    return _delivery(row)


def _unknown(delivery_id: str) -> NotFound:
    return NotFound(f"there is no delivery {delivery_id!r}", where="delivery_id")


def _delivery(row: Row) -> Delivery:
    return Delivery(
        id=row["id"],
        workspace_id=row["workspace"],
        sink=row["sink"],
        type=row["type"],
        seq=row["seq"],
        status=row["status"],
        attempts=row["attempts"],
        created_at=row["created_at"],
        next_at=row["next_at"] if row["status"] == "pending" else None,
        ended_at=row["ended_at"],
        error=row["error"],
        message=row["message"],
        notification=None
        if row["notification"] is None
        else msgspec.json.decode(row["notification"], type=Notification),
    )
