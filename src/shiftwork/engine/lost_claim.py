"""Undoes a claim that may have been made, but whose answer was lost with the connection to the database."""

from __future__ import annotations

from shiftwork.engine import finish
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.pick import ClaimRequest
from shiftwork.model.outcome import Token
from shiftwork.store.store import Tx

REASON = "the answer to the claim was lost"


async def release(tx: Tx, engine: Engine, caller: Caller, request: ClaimRequest, lost_at: float) -> None:
    """Release what the transaction of this time has claimed for the agent, if anything.

    A transaction that the server has not received yet may still claim later; that claim expires.
    """
    await tx.all("lock_agents", items=[(request.workspace, request.agent_id)])  # it may be running: wait for its end
    rows = await tx.all(
        "claims_made_at",
        workspace=request.workspace,
        agent=request.agent_id,
        runtime=request.runtime_id or request.agent_id,
        at=lost_at,
        request=caller.request_id or "",
        holder=caller.holder or "",
    )
    if rows:
        await finish.release(tx, engine, caller, [Token(row["id"], row["fence"]) for row in rows], REASON)
