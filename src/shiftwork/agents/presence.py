"""Presence: a runtime whose process is known to be gone loses its tasks at once, before any lease expires.

This only speeds up recovery. A process is identified by its id and start time, which only others on the same machine
can check; otherwise, the lease decides. It also decides if a dead process has finished work that it could not submit:
another worker on this machine, or the next one, finds the result in the outbox and submits it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from shiftwork.agents.known_process import Process, is_gone, this_process
from shiftwork.engine import finish
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import ids
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.states import SLOT_STATES
from shiftwork.store import crash_points
from shiftwork.store.store import Row, Tx

IDLE_SEC = 3600.0
"""How long after its last sign of life a process without claims is still checked; those of other machines never are."""


class RuntimeProcess(Process, frozen=True):
    """The process of a runtime, the folder where it keeps results that it cannot submit, and its agent."""

    outbox: str | None = None
    agent: str | None = None


async def announce(
    engine: Engine, workspace: str, runtime_id: str, outbox: Path | None = None, agent_id: str | None = None
) -> None:
    """Announce to others on this machine which process this runtime is.

    In its outbox a result is one file, named after its claim: `<token>.json`.
    """
    process = this_process()
    if process is None:
        return
    folder = None if outbox is None else str(outbox)
    runtime = RuntimeProcess(process.machine, process.pid, process.started, folder, agent_id)
    text = msgspec.json.encode(runtime).decode()

    async def write(tx: Tx) -> None:
        await tx.run("touch_runtime", workspace=workspace, id=runtime_id, now=tx.now, heartbeat_at=tx.now)
        await tx.run("set_presence", workspace=workspace, id=runtime_id, presence=text)

    await crash_points.named("presence", engine.store.run(write))


async def find_gone(tx: Tx) -> list[tuple[Row, RuntimeProcess]]:
    """Runtimes whose processes on this machine are gone and that are not marked so yet."""
    present = await tx.all("present_runtimes", since=tx.now - IDLE_SEC)
    found = [(row, msgspec.json.decode(row["presence"], type=RuntimeProcess)) for row in present]
    return [(row, runtime) for row, runtime in found if is_gone(runtime)]


async def reclaim_gone(tx: Tx, engine: Engine) -> dict[str, int]:
    """End the claims of dead processes of this machine, and mark their agents failed."""
    known, returned = await _reclaim_gone(tx, engine)
    return {"gone": known, "handed_back": len(returned)} if known else {}


async def reclaim_gone_now(engine: Engine, workspace: str) -> list[Outcome]:
    """The same immediately, for a starting worker; returns the outcomes of tasks in its own workspace."""
    _, returned = await crash_points.named("presence", engine.store.run(lambda tx: _reclaim_gone(tx, engine)))
    return [outcome for its_workspace, outcome in returned if its_workspace == workspace]


async def _reclaim_gone(tx: Tx, engine: Engine) -> tuple[int, list[tuple[str, Outcome]]]:
    """The number of dead processes, and the outcome of each task they held."""
    gone = await find_gone(tx)
    known, returned = 0, list[tuple[str, Outcome]]()
    for row, runtime in gone:
        if await _has_finished(tx, row, runtime):
            continue
        caller = Caller("maintenance:presence")
        known += 1
        outcomes = await report_gone(tx, engine, caller, row["workspace"], row["id"])
        returned += [(row["workspace"], outcome) for outcome in outcomes]
    return known, returned


async def report_gone(tx: Tx, engine: Engine, caller: Caller, workspace: str, runtime_id: str) -> list[Outcome]:
    """End the claims of a runtime whose process is gone, and mark its agents lost."""
    work = UnitOfWork(tx, engine, caller)
    found = await tx.all("held_by_runtime", runtime=runtime_id, workspace=workspace)
    locked = await work.lock(row["id"] for row in found)
    rows = [row for row in locked if row.status in SLOT_STATES and row.runtime_id == runtime_id]
    hosted = {row.agent_id for row in rows if row.agent_id} | await _announced(tx, workspace, runtime_id)
    await finish.lose_claims(work, rows, runtime_id)
    if rows:
        work.emit_for(workspace, "runtime_gone", data={"runtime": runtime_id, "tasks": len(rows)})
        work.alert(workspace, "runtime_gone", runtime=runtime_id, count=len(rows))
    work.lose_agents(workspace, hosted)
    await work.save()
    # Runtimes are locked last, as in a claim and a heartbeat.
    await tx.run("set_runtime_status", workspace=workspace, id=runtime_id, status="offline")
    return [Outcome(ids.show_task(row.id), row.status) for row in rows]


async def _announced(tx: Tx, workspace: str, runtime_id: str) -> set[str]:
    """The agent that the process named when it announced itself, which also finds one without claims."""
    runtime = await tx.one("read_runtime", workspace=workspace, id=runtime_id)
    presence = msgspec.json.decode(runtime["presence"]) if runtime and runtime["presence"] else {}
    return {presence["agent"]} if presence.get("agent") else set()


async def _has_finished(tx: Tx, row: Row, runtime: RuntimeProcess) -> bool:
    """Whether its outbox holds a result of one of its claims, as far as that can be determined."""
    if runtime.outbox is None:
        return False
    folder = Path(runtime.outbox)
    held = await tx.all("held_by_runtime", runtime=row["id"], workspace=row["workspace"])
    return any(_is_kept(folder / f"{Token(claim['id'], claim['fence']).text}.json") for claim in held)


def _is_kept(file: Path) -> bool:
    """Whether a file is a readable result; others are not waited for."""
    try:
        msgspec.json.decode(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return False
    except OSError:
        return True  # another user's file, which may be a result
    return True
