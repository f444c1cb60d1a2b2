"""Adopting: hold tasks for an agent that has claimed them elsewhere, in the files of a folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from shiftwork.core import ids
from shiftwork.core.errors import InputError, NotFound
from shiftwork.core.states import State
from shiftwork.queue import check, read
from shiftwork.queue.bridged.folder import ScriptClaim
from shiftwork.queue.claim import hand_over, lock_claimer
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.money.purse import open_purse
from shiftwork.queue.pick import ClaimRequest
from shiftwork.queue.protection import breakers, gates
from shiftwork.queue.protection.admission import Admitted
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx


async def adopt(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, agent_id: str, claims: Sequence[ScriptClaim]
) -> dict[str, int]:
    """By task, the fence under which it is held now. What is free no longer, or was of an older attempt, is left out.

    The work has begun already, so pauses, breakers and limits are not asked; the money is. Where a breaker waits for
    a trial, this is one.
    """
    check.name(agent_id, "claimedBy")
    free = await _free(tx, workspace, claims)
    if not free:
        return {}
    request = ClaimRequest(workspace, agent_id, start=True)
    agent = (await lock_claimer(tx, engine, request)).agent
    purse = await open_purse(tx, engine, workspace, agent)
    await purse.look(tx, free)
    paid = []
    for row in free:
        if purse.fits(row):
            purse.take(row)
            paid.append(row)
    chosen = await purse.lock(tx, paid)
    work = Work(tx, engine, caller)
    await _on_trial(work, workspace, chosen)
    assignments = await hand_over(work, request, agent, purse, Admitted(chosen, {}))
    return {ids.show_task(assignment.claim.id): assignment.fence for assignment in assignments}


async def unheld(tx: Tx, workspace: str, claims: Sequence[ScriptClaim]) -> list[ScriptClaim]:
    """Claims of tasks that are free in the queue: most that stand in files are known."""
    found = await _named(tx, workspace, claims)
    rows = await tx.all("read_tasks", items=[(id_,) for id_ in sorted(found)]) if found else ()
    return [found[row["id"]] for row in rows if _is_free(row, workspace, found[row["id"]])]


async def _free(tx: Tx, workspace: str, claims: Sequence[ScriptClaim]) -> Sequence[Row]:
    """Those that nobody holds. Locked first: a claim passes over what is locked, while this one must not."""
    found = await _named(tx, workspace, claims)
    rows = await tx.all("lock_tasks", items=[(id_,) for id_ in sorted(found)]) if found else ()
    free = [row for row in rows if _is_free(row, workspace, found[row["id"]])]
    items = [(place, row["id"], row["lane"]) for place, row in enumerate(free)]
    return await tx.all("take_chosen", items=items, count=len(items)) if items else []


async def _named(tx: Tx, workspace: str, claims: Sequence[ScriptClaim]) -> dict[str, ScriptClaim]:
    """By the task's id. Scripts name tasks as the files do, and write anything."""
    found: dict[str, ScriptClaim] = {}
    for claim in claims:
        with suppress(NotFound, InputError):
            found[await read.find(tx, workspace, claim.task_id)] = claim
    return found


def _is_free(row: Row, workspace: str, claim: ScriptClaim) -> bool:
    return bool(row["workspace"] == workspace and row["fence"] == claim.fence and row["status"] == State.READY)


async def _on_trial(work: Work, workspace: str, rows: Sequence[Row]) -> None:
    found = await work.tx.all("read_gates", workspace=workspace)
    due = {gate["scope"] for gate in found if gate["kind"] == "breaker" and not gates.is_shut(gate, work.now)}
    trials: dict[breakers.Name, list[Row]] = defaultdict(list)
    for row in rows:
        if row["type"] in due:
            trials[workspace, row["type"]].append(row)
    if trials:
        may_go = await breakers.try_out(work, trials)
        await breakers.save(work, dict(change for change in may_go.values() if change is not None))
