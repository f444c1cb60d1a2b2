"""Implements the operations on instructions."""

from __future__ import annotations

from shiftwork.engine import read
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import lock_live
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import check, ids
from shiftwork.model.errors import InputError, NotFound, WrongState
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.reports import MAX_INSTRUCTIONS, Instruction
from shiftwork.model.states import CLAIMED_STATES, FINAL
from shiftwork.operation.local import Call, implements, reading
from shiftwork.steering import instruction_delivery
from shiftwork.steering.api import Inbox, Steering, TaskInstructions
from shiftwork.store.store import Tx


@implements(Steering.tell)
async def tell(call: Call, task_id: str, text: str) -> Instruction:
    check.text(text, "text")
    if not text.strip():
        raise InputError("must not be empty", where="text")
    return await call.run(_tell, await call.find(task_id), text)


async def _tell(tx: Tx, engine: Engine, caller: Caller, uuid: str, text: str) -> Instruction:
    """Store the instruction for the lineage, whose newest row's holder, now or later, gets it."""
    work = UnitOfWork(tx, engine, caller)
    shown = ids.show_task(uuid)
    found = await work.lock([uuid])
    if not found:
        raise NotFound(f"there is no task {shown}", task_id=shown)
    root = work.rows[found[0].root_id]
    (newest,) = await work.lock([root.newest_id or root.id])
    if newest.status in FINAL:
        hint = "Rerun it with a changed payload, or submit a new task."
        raise WrongState(f"task {shown} is {newest.status}", task_id=shown, status=newest.status, hint=hint)
    values = {"root": root.id, "workspace": root.workspace, "text": text, "sent_by": caller.actor}
    row = await tx.one("insert_instruction", now=tx.now, **values)
    assert row is not None
    if row["seq"] > MAX_INSTRUCTIONS:
        raise WrongState(f"task {shown} has {MAX_INSTRUCTIONS} instructions, the maximum", task_id=shown)
    work.emit(newest, "instruction_sent", data={"seq": row["seq"]})
    await work.save_events()
    return instruction_delivery.instruction(row)


@reading(TaskInstructions.instructions)
async def instructions(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, task_id: str, *, after: int = 0, limit: int = 100
) -> list[Instruction]:
    uuid = await read.find(tx, workspace, task_id)
    task = await tx.one("read_tasks", items=[(uuid,)])
    if task is None or task["workspace"] != workspace:
        raise NotFound(f"there is no task {task_id!r}", task_id=task_id)
    rows = await tx.all("instructions_of", root=task["root_id"], after=after, count=limit)
    return [instruction_delivery.instruction(row, task["status"]) for row in rows]


@implements(Inbox.inbox)
async def inbox(call: Call, token: str | Token, *, after: int = 0) -> list[Instruction]:
    return await call.run(_inbox, await call.token(token), after)


async def _inbox(tx: Tx, engine: Engine, caller: Caller, token: Token, after: int) -> list[Instruction]:
    claim = await lock_live(tx, engine, caller, token, CLAIMED_STATES)
    rows = await tx.all("instructions_of", root=claim["root_id"], after=after, count=MAX_INSTRUCTIONS)
    work = UnitOfWork(tx, engine, caller)
    found = await instruction_delivery.note_delivery(work, claim, rows)
    await work.save_events()
    return found


@implements(Inbox.acknowledge)
async def acknowledge(call: Call, token: str | Token, seq: int) -> Outcome:
    return await call.run(_acknowledge, await call.token(token), seq)


async def _acknowledge(tx: Tx, engine: Engine, caller: Caller, token: Token, seq: int) -> Outcome:
    claim = await lock_live(tx, engine, caller, token, CLAIMED_STATES)
    rows = await tx.all("acknowledge_instructions", root=claim["root_id"], seq=seq, fence=token.fence, now=tx.now)
    if rows:
        work = UnitOfWork(tx, engine, caller)
        instruction_delivery.add_event(work, claim, "instruction_acknowledged", sorted(row["seq"] for row in rows))
        await work.save_events()
    return Outcome(ids.show_task(token.id), claim["status"], repeated=not rows)
