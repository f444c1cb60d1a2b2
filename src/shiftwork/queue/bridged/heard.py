"""What foreign workers say about the work they took from a stream: each word has its effect once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from shiftwork.core import ids
from shiftwork.core.settings import Bounds
from shiftwork.queue import check, finish
from shiftwork.queue.bridged.published import Bridge, Delivery, Offer, give, lock_offers, take_over
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.fence import Outcome, Token
from shiftwork.queue.finish import Completion, Failure
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx

Heard = Literal["accepted", "repeated", "late"]
Delivered = Callable[[str | None], bool]
"""Whether the stream has given an entry to somebody."""


class Said(NamedTuple):
    """One entry by which a worker ends its work on a task."""

    stream: str
    message_id: str
    task_id: str
    worker: str | None
    """None where it does not say: then it speaks for whoever has the task."""
    succeeded: bool
    data: Any = None
    error: str | None = None
    retry: bool = True


async def hear(
    tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, said: Sequence[Said], delivered: Delivered
) -> list[Heard]:
    """Accept what live workers say, in order."""
    return [await _hear(tx, engine, caller, bridge, each, delivered) for each in said]


async def _hear(tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, said: Said, delivered: Delivered) -> Heard:
    names = {"workspace": bridge.workspace, "bridge": bridge.name, "stream": said.stream}
    if await tx.one("note_heard", **names, message_id=said.message_id, now=tx.now) is None:
        return "repeated"
    open_ = await lock_offers(tx, bridge, [Offer(said.task_id, 0)])
    offer = next(iter(open_.items()), None)
    token = None if offer is None else await _claim(tx, engine, caller, bridge, said, *offer, delivered)
    if offer is None or token is None:
        engine.conflict("lease_lost", task=ids.show_task(said.task_id), worker=said.worker, entry=said.message_id)
        return "late"
    outcome = await _finish(tx, engine, caller._replace(actor="system"), said, token)
    await tx.run("end_published", items=[offer[0]])
    return "late" if outcome.error is not None else "accepted"


async def refuse(
    tx: Tx, engine: Engine, caller: Caller, bridge: Bridge, stream: str, message_id: str, why: str
) -> None:
    """Log an entry that cannot be understood, once however often it is read."""
    names = {"workspace": bridge.workspace, "bridge": bridge.name, "stream": stream, "message_id": message_id}
    if await tx.one("note_heard", **names, now=tx.now) is None:
        return
    work = Work(tx, engine, caller)
    facts = {"bridge": bridge.name, "stream": stream, "message_id": message_id, "error": why.replace("\0", "\ufffd")}
    work.tell_of(bridge.workspace, "entry_refused", data=facts)
    await work.save()


async def _claim(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    bridge: Bridge,
    said: Said,
    offer: Offer,
    row: Row,
    delivered: Delivered,
) -> Token | None:
    """The claim this worker speaks under. Who took the entry unseen gets it now; who lost it does not."""
    worker = said.worker or row["consumer"] or bridge.group
    if row["consumer"] == worker:
        return Token(said.task_id, row["fence"])
    if row["consumer"] is None and row["delivered_at"] is None and not delivered(row["message_id"]):
        return None
    theirs = [Delivery(offer, row["message_id"] or "", worker)]
    if row["consumer"] is not None:
        if await tx.one("tried_by", id=said.task_id, agent=worker) is not None:
            return None
        await take_over(tx, engine, caller, theirs)
    return (await give(tx, engine, caller, bridge, worker, theirs)).get(said.task_id)


async def _finish(tx: Tx, engine: Engine, caller: Caller, said: Said, token: Token) -> Outcome:
    if said.succeeded:
        result = "{}" if said.data is None else as_result(said.data)
        return (await finish.complete(tx, engine, caller, [Completion(token, result, said.data)]))[0]
    return (await finish.fail(tx, engine, caller, [Failure(token, None, said.error, retry=said.retry)]))[0]


_BOUNDS = Bounds()


def as_result(data: Any) -> str:
    """A result as it is stored; says what is wrong with one that cannot be."""
    return check.to_json({"data": data}, _BOUNDS.result_bytes, _BOUNDS, "result")
