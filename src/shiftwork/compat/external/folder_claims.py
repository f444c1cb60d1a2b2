"""Claims in a workspace whose tasks scripts also claim, in the files of a `.loki` folder."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shiftwork.budgets.allocator import open_allocator
from shiftwork.compat.external.loki_folder import Folder, ScriptClaim, by_agent, claim_alongside_scripts
from shiftwork.engine import read
from shiftwork.engine.claim import ClaimAnswer, assign, lock_claimer
from shiftwork.engine.claim_hooks import Look, around_claims
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.pick import ClaimRequest
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.limits import breakers, gates
from shiftwork.limits.admission import Admitted
from shiftwork.model import check, ids
from shiftwork.model.errors import AgentUnavailable, AgentUnregistered, InputError, NotFound
from shiftwork.model.states import State
from shiftwork.operation.local import Call
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row, Tx


async def attach(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, agent_id: str, claims: Sequence[ScriptClaim]
) -> dict[str, int]:
    """Attach the claims; returns the fence of each task. Skips tasks no longer free and claims of older attempts.

    The work has already begun, so pauses, breakers and limits do not apply, but budgets do. If a breaker is half-open,
    this is its test.
    """
    check.name(agent_id, "claimedBy")
    free = await _free(tx, workspace, claims)
    if not free:
        return {}
    request = ClaimRequest(workspace, agent_id, start=True)
    agent = (await lock_claimer(tx, engine, request)).agent
    allocator = await open_allocator(tx, engine, workspace, agent)
    await allocator.load(tx, free)
    paid = []
    for row in free:
        if allocator.fits(row):
            allocator.take(row)
            paid.append(row)
    chosen = await allocator.lock(tx, paid)
    work = UnitOfWork(tx, engine, caller)
    await _on_trial(work, workspace, chosen)
    assignments = await assign(work, request, agent, allocator, Admitted(chosen, {}))
    return {ids.show_task(assignment.claim.id): assignment.fence for assignment in assignments}


async def unclaimed(tx: Tx, workspace: str, claims: Sequence[ScriptClaim]) -> list[ScriptClaim]:
    """The claims that the queue does not know yet; usually few."""
    found = await _named(tx, workspace, claims)
    rows = await tx.all("read_tasks", items=[(id_,) for id_ in sorted(found)]) if found else ()
    return [found[row["id"]] for row in rows if _is_free(row, workspace, found[row["id"]])]


async def _free(tx: Tx, workspace: str, claims: Sequence[ScriptClaim]) -> Sequence[Row]:
    """The unclaimed tasks, locked first: unlike a claim, this must not skip locked rows."""
    found = await _named(tx, workspace, claims)
    rows = await tx.all("lock_tasks", items=[(id_,) for id_ in sorted(found)]) if found else ()
    free = [row for row in rows if _is_free(row, workspace, found[row["id"]])]
    items = [(place, row["id"], row["lane"]) for place, row in enumerate(free)]
    return await tx.all("take_chosen", items=items, count=len(items), now=tx.now) if items else []


async def _named(tx: Tx, workspace: str, claims: Sequence[ScriptClaim]) -> dict[str, ScriptClaim]:
    """The claims by task id. Scripts use the names in the files, and can write anything."""
    found: dict[str, ScriptClaim] = {}
    for claim in claims:
        with suppress(NotFound, InputError):
            found[await read.find(tx, workspace, claim.task_id, exact=True)] = claim
    return found


def _is_free(row: Row, workspace: str, claim: ScriptClaim) -> bool:
    return bool(row["workspace"] == workspace and row["fence"] == claim.fence and row["status"] == State.READY)


async def _on_trial(work: UnitOfWork, workspace: str, rows: Sequence[Row]) -> None:
    found = await work.tx.all("read_gates", workspace=workspace)
    due = {gate["scope"] for gate in found if gate["kind"] == "breaker" and not gates.is_shut(gate, work.now)}
    trials: dict[breakers.Name, list[Row]] = defaultdict(list)
    for row in rows:
        if row["type"] in due:
            trials[workspace, row["type"]].append(row)
    if trials:
        may_go = await breakers.admit_trials(work, trials)
        await breakers.save(work, dict(change for change in may_go.values() if change is not None))


@around_claims
async def claim_with_folder(call: Call, settings: Settings, look: Look) -> ClaimAnswer:
    if settings.claim_folder is None:
        return await look()
    folder = Folder(Path(settings.claim_folder), settings.lock_timeout_sec)
    return await claim_alongside_scripts(folder, functools.partial(_adopt, call), look, call.engine.store.now)


async def _adopt(call: Call, claims: Sequence[ScriptClaim]) -> None:
    """Attach the claims of scripts, so that no agent gets these tasks."""
    free = await call.read(lambda tx: unclaimed(tx, call.workspace, claims)) if claims else []
    for agent_id, theirs in by_agent(free).items():
        # An agent with no capacity or an invalid name must not block the others.
        with suppress(AgentUnavailable, AgentUnregistered, InputError):
            await call.run_each_time(attach, call.workspace, agent_id, theirs)
