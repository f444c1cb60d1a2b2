"""Results of foreign workers from a stream, each applied once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from shiftwork.compat.external.model import Bridge, Offer, StreamDelivery
from shiftwork.compat.external.offered_work import give, lock_offers, take_over
from shiftwork.engine import finish
from shiftwork.engine.checked_reports import CheckedFailure, CheckedResult
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import check, ids
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.reports import TaskFailure, TaskResult
from shiftwork.settings.model import Bounds
from shiftwork.store.store import Row, Tx

Heard = Literal["accepted", "repeated", "late"]
Delivered = Callable[[str | None], bool]
"""Whether the stream has delivered an entry."""


class WorkerReply(NamedTuple):
    """One entry by which a worker ends its work on a task."""

    stream: str
    message_id: str
    task_id: str
    worker: str | None
    """None if the reply has no worker: it then counts for the worker that holds the task."""
    succeeded: bool
    data: Any = None
    error: str | None = None
    retry: bool = True


async def receive(
    tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, replies: Sequence[WorkerReply], delivered: Delivered
) -> list[Heard]:
    """Apply the replies of workers, in order."""
    return [await _receive(tx, engine, caller, bridge, each, delivered) for each in replies]


async def _receive(
    tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, reply: WorkerReply, delivered: Delivered
) -> Heard:
    names = {"workspace": bridge.workspace, "bridge": bridge.name, "stream": reply.stream}
    if await tx.one("note_heard", **names, message_id=reply.message_id, now=tx.now) is None:
        return "repeated"
    open_ = await lock_offers(tx, bridge, [Offer(reply.task_id, 0)])
    offer = next(iter(open_.items()), None)
    token = None if offer is None else await _claim(tx, engine, caller, bridge, reply, *offer, delivered)
    if offer is None or token is None:
        engine.conflict("lease_lost", task=ids.show_task(reply.task_id), worker=reply.worker, entry=reply.message_id)
        return "late"
    outcome = await _finish(tx, engine, caller._replace(actor="system"), reply, token)
    await tx.run("end_published", items=[offer[0]])
    return "late" if outcome.error is not None else "accepted"


async def refuse(
    tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, stream: str, message_id: str, why: str
) -> None:
    """Record an invalid entry once, however often it is read."""
    names = {"workspace": bridge.workspace, "bridge": bridge.name, "stream": stream, "message_id": message_id}
    if await tx.one("note_heard", **names, now=tx.now) is None:
        return
    work = UnitOfWork(tx, engine, caller)
    facts = {"bridge": bridge.name, "stream": stream, "message_id": message_id, "error": why.replace("\0", "\ufffd")}
    work.emit_for(bridge.workspace, "entry_refused", data=facts)
    await work.save()


async def _claim(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    bridge: Bridge,
    reply: WorkerReply,
    offer: Offer,
    row: Row,
    delivered: Delivered,
) -> Token | None:
    """The claim of a reply. A worker whose delivery was not seen gets a claim now; one that lost its claim does not."""
    worker = reply.worker or row["consumer"] or bridge.group
    if row["consumer"] == worker:
        return Token(reply.task_id, row["fence"])
    if row["consumer"] is None and row["delivered_at"] is None and not delivered(row["message_id"]):
        return None
    theirs = [StreamDelivery(offer, row["message_id"] or "", worker)]
    if row["consumer"] is not None:
        if await tx.one("tried_by", id=reply.task_id, agent=worker) is not None:
            return None
        await take_over(tx, engine, caller, theirs)
    return (await give(tx, engine, caller, bridge, worker, theirs)).get(reply.task_id)


async def _finish(tx: Tx, engine: Engine, caller: Caller, reply: WorkerReply, token: Token) -> Outcome:
    if reply.succeeded:
        result = "{}" if reply.data is None else as_result(reply.data)
        return (await finish.complete(tx, engine, caller, [CheckedResult(token, TaskResult(reply.data), result)]))[0]
    failure = TaskFailure(error=reply.error, retry=reply.retry)
    return (await finish.fail(tx, engine, caller, [CheckedFailure(token, failure)]))[0]


_BOUNDS = Bounds()


def as_result(data: Any) -> str:
    """Encode a result for the store; raises InputError if it cannot be stored."""
    return check.to_json({"data": data}, _BOUNDS.result_bytes, _BOUNDS, "result")
