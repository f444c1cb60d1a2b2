"""Presence: a runtime whose process is known to be gone loses its tasks at once, before any lease runs out.

An accelerator only. A process is known by its id and start time, which only others on the same machine can check;
where that cannot be said, the lease decides. So it does where a dead process has finished work that it could not hand
in: another worker of this machine, or the next one, finds the result in the outbox and hands it in.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from shiftwork.agents import operations as agents
from shiftwork.agents.known_process import Process, is_gone, this_process
from shiftwork.engine.engine import Caller, Engine
from shiftwork.model.outcome import Outcome, Token
from shiftwork.store import crash_points
from shiftwork.store.store import Row, Tx

IDLE_SEC = 3600.0
"""A process that holds nothing is looked for this long after its last sign; those of other machines never go."""


class RuntimeProcess(Process, frozen=True):
    """The process of a runtime, the folder where it keeps results that it cannot submit, and its agent."""

    outbox: str | None = None
    agent: str | None = None


async def announce(
    engine: Engine, workspace: str, runtime_id: str, outbox: Path | None = None, agent_id: str | None = None
) -> None:
    """Let others on this machine know which process this runtime is.

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
    """Runtimes whose processes, of this machine, are gone, and which are not marked so yet."""
    present = await tx.all("present_runtimes", since=tx.now - IDLE_SEC)
    found = [(row, msgspec.json.decode(row["presence"], type=RuntimeProcess)) for row in present]
    return [(row, runtime) for row, runtime in found if is_gone(runtime)]


async def reclaim_gone(tx: Tx, engine: Engine) -> dict[str, int]:
    """End the claims of processes of this machine that are gone, and mark their agents failed."""
    known, returned = await _reclaim_gone(tx, engine)
    return {"gone": known, "handed_back": len(returned)} if known else {}


async def reclaim_gone_now(engine: Engine, workspace: str) -> list[Outcome]:
    """The same at once, for a worker that starts; what became of tasks in its own workspace is answered."""
    _, returned = await crash_points.named("presence", engine.store.run(lambda tx: _reclaim_gone(tx, engine)))
    return [outcome for its_workspace, outcome in returned if its_workspace == workspace]


async def _reclaim_gone(tx: Tx, engine: Engine) -> tuple[int, list[tuple[str, Outcome]]]:
    """How many are gone, and what each task they held came to."""
    gone = await find_gone(tx)
    known, returned = 0, list[tuple[str, Outcome]]()
    for row, runtime in gone:
        if await _has_finished(tx, row, runtime):
            continue
        caller = Caller("maintenance:presence")
        known += 1
        outcomes = await agents.report_gone(tx, engine, caller, row["workspace"], row["id"])
        returned += [(row["workspace"], outcome) for outcome in outcomes]
    return known, returned


async def _has_finished(tx: Tx, row: Row, runtime: RuntimeProcess) -> bool:
    """Whether a result of what it holds waits in its outbox to be submitted, as far as that can be said."""
    if runtime.outbox is None:
        return False
    folder = Path(runtime.outbox)
    held = await tx.all("held_by_runtime", runtime=row["id"], workspace=row["workspace"])
    return any(_is_kept(folder / f"{Token(claim['id'], claim['fence']).text}.json") for claim in held)


def _is_kept(file: Path) -> bool:
    """A file that no one can read as a result is not waited for."""
    try:
        msgspec.json.decode(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return False
    except OSError:
        return True  # it is someone else's, and may be good
    return True
