"""Presence: a runtime whose process is known to be gone gives its tasks back at once, before any lease runs out.

An accelerator only. A process is known by its id and start time, which only others on the same machine can check;
where that cannot be said, the lease decides.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shiftwork.queue import agents
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.queue import Queue
from shiftwork.store.store import Tx


class Process(msgspec.Struct):
    """A process as others on its machine can check it."""

    machine: str
    pid: int
    started: str


def this_process() -> Process | None:
    return process_of(os.getpid())


def process_of(pid: int) -> Process | None:
    """The process that has this id now; None where that cannot be said."""
    machine, started = _machine(), _started(pid)
    return Process(machine, pid, started) if machine and started else None


def _machine() -> str | None:
    """This boot of this machine, and the namespace in which its process ids mean something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115  # a link into nowhere
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When the process began, in the kernel's ticks; None for one that is gone, or dead and not yet buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in {"Z", "X"} else fields[19]
    except (OSError, IndexError):
        return None


def _sees_others() -> bool:
    """Where the processes of other users are hidden, a process that is not seen may be alive."""
    return _started(1) is not None


async def announce(queue: Queue, runtime_id: str) -> None:
    """Let others on this machine know which process this runtime is."""
    process = this_process()
    if process is None:
        return
    text = msgspec.json.encode(process).decode()

    async def write(tx: Tx) -> None:
        await tx.run("see_runtime", workspace=queue.workspace, id=runtime_id, now=tx.now, heartbeat_at=tx.now)
        await tx.run("set_presence", workspace=queue.workspace, id=runtime_id, presence=text)

    await queue.engine.store.run(write)


async def hand_back(tx: Tx, engine: Engine) -> dict[str, int]:
    """Give back what is held by processes of this machine that are gone."""
    machine = _machine()
    held = await tx.all("present_runtimes")
    here = [(row, msgspec.json.decode(row["presence"], type=Process)) for row in held]
    mine = [(row, process) for row, process in here if process.machine == machine]
    gone = [row for row, process in mine if _started(process.pid) != process.started]
    if not gone or not _sees_others():
        return {}
    returned = 0
    for row in gone:
        caller = Caller("duty:presence")
        returned += len(await agents.runtime_gone(tx, engine, caller, row["workspace"], row["id"]))
    return {"gone": len(gone), "handed_back": returned}
