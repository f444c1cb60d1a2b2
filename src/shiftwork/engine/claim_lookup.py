"""Looks up claims: for writes without a token, and for claims whose answer was lost."""

from __future__ import annotations

from shiftwork.engine import read
from shiftwork.engine.engine import Caller, Engine
from shiftwork.model import ids
from shiftwork.model.errors import NotFound, NotYourClaim, WrongState
from shiftwork.model.outcome import Token
from shiftwork.model.states import CLAIMED_STATES
from shiftwork.model.task import Task
from shiftwork.store.store import Tx


async def current(tx: Tx, caller: Caller, task_id: str, agent_id: str | None, runtime_id: str | None) -> Token:
    """The claim that a write without a fence refers to: the current one, or the last one.

    The last claim is returned so that the verb itself recognizes a repeat, or refuses a late write.
    """
    row = await tx.one("read_tasks", items=[(task_id,)])
    shown = ids.show_task(task_id)
    if row is None or not caller.may_see(row["workspace"]):
        raise NotFound(f"there is no task {shown}", task_id=shown)
    held = row["status"] in CLAIMED_STATES
    agent, runtime = ("agent_id", "runtime_id") if held else ("last_agent_id", "last_runtime_id")
    theirs = agent_id in {None, row[agent]} and runtime_id in {None, row[runtime]} and caller.may_write(row["holder"])
    if held and not theirs:
        raise NotYourClaim(f"task {shown} is claimed by another agent", task_id=shown, status=row["status"], hint=_HINT)
    if not row["fence"] or not theirs:
        raise WrongState(f"task {shown} is {row['status']}; it is not claimed", task_id=shown, status=row["status"])
    return Token(task_id, row["fence"])


_HINT = "Name the agent or runtime that claimed it, or send the claim token."


async def made(tx: Tx, engine: Engine, caller: Caller, workspace: str, who: str, request_id: str) -> list[Task]:
    """The tasks that an agent or a runtime still holds under the claim made by this request, in the order assigned."""
    rows = await tx.all("claims_of_request", workspace=workspace, who=who, request=request_id, holder=caller.holder)
    return await read.tasks(tx, engine, workspace, [row["id"] for row in rows])
