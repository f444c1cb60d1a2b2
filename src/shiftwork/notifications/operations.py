"""Implements the operations on sinks and deliveries."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from shiftwork.engine import event_log
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.model import check, ids
from shiftwork.model.errors import ConflictError, IdInUse, InputError, NotFound
from shiftwork.notifications import apprise_sinks, policy
from shiftwork.notifications.api import Deliveries, Sinks
from shiftwork.notifications.deliveries import PendingNotification, alert_failing, delivery_rows, filter_of
from shiftwork.notifications.model import (
    ALL_ALERTS,
    TEST,
    AddedSink,
    Delivery,
    Kind,
    Notification,
    Sink,
    SinkFilter,
    SinkTarget,
    Status,
)
from shiftwork.operation.local import Call, implements, reading, transaction
from shiftwork.store.store import Row, Tx, record

BATCH = 500
"""Deliveries redelivered per transaction."""


@implements(Sinks.add)
async def add(
    call: Call,
    name: str,
    kind: Kind,
    address: str,
    *,
    wants: SinkFilter | Mapping[str, Any] = ALL_ALERTS,
    secret: str | None = None,
    allow_private: bool = False,
    server: str | None = None,
    sender: str | None = None,
) -> AddedSink:
    made = _new_secret() if kind == "webhook" and secret is None else None
    place = SinkTarget(kind, address, secret or made, server, sender, allow_private)
    wanted = _checked_wants(wants)
    policy.check_place(place)
    if kind == "apprise" and apprise_sinks.is_installed() and apprise_sinks.target(address) is None:
        raise InputError("apprise does not support this address", where="address")
    sink_id = f"sink_{secrets.token_hex(8)}"
    added = await call.run(_add, call.workspace, sink_id, name, place, wanted)
    if added.id != sink_id:
        raise ConflictError(
            f"this request has already added the sink {added.name!r}; its secret is not stored",
            sink=added.name,
            hint="Change its secret, or remove it and add it under a new key.",
        )
    return AddedSink(added, made)


def _new_secret() -> str:
    return policy.SIGNING + base64.b64encode(secrets.token_bytes(32)).decode()


def _checked_wants(wants: SinkFilter | Mapping[str, Any]) -> SinkFilter:
    wanted = check.fit(check.read(wants, SinkFilter, "wants"), "wants")
    policy.check_wants(wanted)
    return wanted


async def _add(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    sink_id: str,
    name: str,
    place: SinkTarget,
    wants: SinkFilter,
) -> Sink:
    await engine.settings_cache.add(tx, workspace)
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "sink_added", data={"sink": name, "kind": place.kind})
    await work.save_events()
    added = await tx.one(
        "insert_sink",
        id=sink_id,
        workspace=workspace,
        name=name,
        **{**place._asdict(), "secret": engine.secrets.seal(place.secret)},
        wants=as_json(wants),
        now=tx.now,
        actor=caller.actor,
        events=await event_log.last(tx),
        alerts=await event_log.last(tx, "alert"),
    )
    if added is None:
        raise IdInUse(f"there is a sink {name!r} already", where="name", hint="Choose another name, or change it.")
    return await get(tx, engine, caller, workspace, name)


@transaction(Sinks.update)
async def update(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    sink: str,
    *,
    address: str | UnsetType = UNSET,
    wants: SinkFilter | Mapping[str, Any] | UnsetType = UNSET,
    secret: str | UnsetType = UNSET,
    allow_private: bool | UnsetType = UNSET,
    server: str | UnsetType = UNSET,
    sender: str | UnsetType = UNSET,
) -> Sink:
    given = {"address": address, "secret": secret, "allow_private": allow_private, "server": server, "sender": sender}
    new = {name: value for name, value in given.items() if value is not UNSET}
    if not new and wants is UNSET:
        raise InputError("nothing to change", where="change")
    wanted = None if wants is UNSET else _checked_wants(wants)
    row = await _lock(tx, workspace, sink)
    _check_secret_follows(row, new)
    place = _place_of(row, engine, new)
    policy.check_place(place)
    fields = place._asdict()
    del fields["kind"]
    fields["secret"] = engine.secrets.seal(place.secret) if "secret" in new else row["secret"]
    before = filter_of(row)
    # Earlier events that did not match are not read again; the sink receives events from now on.
    events = row["events_after"] if before.events else await event_log.last(tx)
    alerts = row["alerts_after"] if before.alerts else await event_log.last(tx, "alert")
    await tx.run("update_sink", id=row["id"], **fields, wants=as_json(wanted or before), events=events, alerts=alerts)
    work = UnitOfWork(tx, engine, caller)
    changed = sorted([*new, *([] if wanted is None else ["wants"])])
    work.emit_for(workspace, "sink_updated", data={"sink": sink, "changed": changed})
    await work.save_events()
    return await get(tx, engine, caller, workspace, sink)


def _place_of(row: Row, engine: Engine, new: dict[str, Any]) -> SinkTarget:
    # A replaced secret need not be readable: its encryption key may be lost.
    fields = {name: row[name] for name in ("address", "server", "sender")}
    fields |= {"allow_private": bool(row["allow_private"])} | new
    if "secret" not in new:
        fields["secret"] = engine.secrets.open(row["secret"])
    return SinkTarget(row["kind"], **fields)


def _check_secret_follows(row: Row, new: Mapping[str, object]) -> None:
    """Require the secret again with a new address: otherwise anyone who can change a sink could redirect its secret."""
    where = "server" if row["kind"] == "email" else "address"
    moved = where in new and new[where] != row[where]
    if moved and row["secret"] is not None and "secret" not in new:
        raise InputError(
            f"the secret was given for another {where}",
            where="secret",
            hint=f"Send the secret again together with the new {where}; nothing was changed.",
        )


@transaction(Sinks.pause)
async def pause(tx: Tx, engine: Engine, caller: Caller, workspace: str, sink: str, reason: str | None = None) -> Sink:
    row = await _lock(tx, workspace, sink)
    if row["paused_at"] is None:
        await tx.run("pause_sink", id=row["id"], now=tx.now, reason=reason)
        work = UnitOfWork(tx, engine, caller)
        work.emit_for(workspace, "sink_paused", data={"sink": sink, "reason": reason})
        await work.save_events()
    return await get(tx, engine, caller, workspace, sink)


@transaction(Sinks.resume)
async def resume(tx: Tx, engine: Engine, caller: Caller, workspace: str, sink: str) -> Sink:
    row = await _lock(tx, workspace, sink)
    await tx.run("resume_sink", id=row["id"])
    if row["paused_at"] is not None:
        work = UnitOfWork(tx, engine, caller)
        work.emit_for(workspace, "sink_resumed", data={"sink": sink})
        await work.save_events()
    return await get(tx, engine, caller, workspace, sink)


@transaction(Sinks.remove)
async def remove(tx: Tx, engine: Engine, caller: Caller, workspace: str, sink: str) -> bool:
    row = await tx.one("lock_sink", workspace=workspace, name=sink)
    if row is None:
        return False
    await tx.run("remove_sink", id=row["id"], now=tx.now)
    work = UnitOfWork(tx, engine, caller)
    await alert_failing(work, workspace)
    work.emit_for(workspace, "sink_removed", data={"sink": sink})
    await work.save_events()
    return True


async def _lock(tx: Tx, workspace: str, name: str) -> Row:
    row = await tx.one("lock_sink", workspace=workspace, name=name)
    if row is None:
        raise _unknown(name)
    return row


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no sink {name!r}", where="sink")


@reading(Sinks.get)
async def get(tx: Tx, engine: Engine, caller: Caller, workspace: str, sink: str) -> Sink:
    return _sink(await _read(tx, workspace, sink), tx.now)


async def _read(tx: Tx, workspace: str, name: str) -> Row:
    row = await tx.one("read_sink", workspace=workspace, name=name)
    if row is None:
        raise _unknown(name)
    return row


@reading(Sinks.list)
async def list_sinks(tx: Tx, engine: Engine, caller: Caller, workspace: str) -> list[Sink]:
    return [_sink(row, tx.now) for row in await tx.all("list_sinks", workspace=workspace)]


def _sink(row: Row, now: float) -> Sink:
    resting = row["rests_until"] is not None and row["rests_until"] > now
    status = "paused" if row["paused_at"] is not None else "failing" if row["failing"] else "active"
    return record(
        Sink,
        row,
        workspace_id=row["workspace"],
        address=row["address"] if row["kind"] == "email" else policy.shown(row["address"]),
        wants=filter_of(row),
        allow_private=bool(row["allow_private"]),
        status="resting" if status == "active" and resting else status,
        rests_until=row["rests_until"] if resting else None,
    )


@transaction(Sinks.test)
async def test(tx: Tx, engine: Engine, caller: Caller, workspace: str, sink: str) -> Delivery:
    found = await _read(tx, workspace, sink)
    if found["paused_at"] is not None:
        raise ConflictError(f"the sink {sink!r} is paused", where="sink", hint="Resume it first.")
    data = {"workspace_id": workspace, "sink": sink, "actor": caller.actor}
    notification = Notification(TEST, policy.timestamp(tx.now), policy.redact(data))
    (row,) = delivery_rows(tx, engine, "test", [PendingNotification(found["id"], workspace, None, notification)])
    await tx.insert("insert_deliveries", [row])
    await tx.run("wake_sink", id=found["id"])
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "sink_tested", data={"sink": sink, "delivery": row[0]})
    await work.save_events()
    return await get_delivery(tx, engine, caller, workspace, row[0])


@transaction(Deliveries.redeliver)
async def redeliver(tx: Tx, engine: Engine, caller: Caller, workspace: str, delivery_id: str) -> Delivery:
    row = await _read_delivery(tx, workspace, delivery_id)
    # Pending deliveries are sent anyway.
    if await tx.one("redeliver_one", id=delivery_id, now=tx.now) is not None:
        await _emit_redelivered(tx, engine, caller, workspace, row["sink"], row["sink_id"], 1)
    return await get_delivery(tx, engine, caller, workspace, delivery_id)


@implements(Deliveries.redeliver_dead)
async def redeliver_dead(call: Call, sink: str) -> int:
    total, before = 0, None
    while True:
        count, before = await call.run(_redeliver_batch, call.workspace, sink, before)
        total += count
        if before is None:
            return total


async def _redeliver_batch(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, before: float | None
) -> tuple[int, float | None]:
    """Redeliver a batch; returns the number, and the time before which there may be more."""
    sink = await _read(tx, workspace, name)
    until = tx.now if before is None else before
    rows = await tx.all("redeliver_dead", sink=sink["id"], now=tx.now, before=until, count=BATCH)
    if rows:
        await _emit_redelivered(tx, engine, caller, workspace, name, sink["id"], len(rows))
    return len(rows), until if len(rows) == BATCH else None


async def _emit_redelivered(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, name: str, sink_id: str, count: int
) -> None:
    await tx.run("wake_sink", id=sink_id)
    work = UnitOfWork(tx, engine, caller)
    work.emit_for(workspace, "sink_redelivered", data={"sink": name, "deliveries": count})
    await work.save_events()


@reading(Deliveries.list)
async def list_deliveries(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    sink: str | None = None,
    *,
    status: Status | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[Delivery]:
    if after is not None and not ids.is_delivery(after):
        raise InputError(f"{after!r} is not the id of a delivery", where="after")
    sink_id = None
    if sink is not None:
        found = await tx.one("read_sink", workspace=workspace, name=sink)
        if found is None:
            return []
        sink_id = found["id"]
    name = "list_deliveries" if status in {None, "sent"} else "list_unsent_deliveries"
    rows = await tx.all(name, workspace=workspace, sink=sink_id, status=status, after=after, count=limit)
    return [_delivery(row) for row in rows]


@reading(Deliveries.get)
async def get_delivery(tx: Tx, engine: Engine, caller: Caller, workspace: str, delivery_id: str) -> Delivery:
    return _delivery(await _read_delivery(tx, workspace, delivery_id))


async def _read_delivery(tx: Tx, workspace: str, delivery_id: str) -> Row:
    row = await tx.one("read_delivery", id=delivery_id, workspace=workspace)
    if row is None:
        raise NotFound(f"there is no delivery {delivery_id!r}", where="delivery_id")
    return row


def _delivery(row: Row) -> Delivery:
    return record(
        Delivery,
        row,
        workspace_id=row["workspace"],
        next_at=row["next_at"] if row["status"] == "pending" else None,
        notification=None
        if row["notification"] is None
        else msgspec.json.decode(row["notification"], type=Notification),
    )
