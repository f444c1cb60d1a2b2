"""Processes as others on the same machine can check them: by id and start time."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import msgspec


class Process(msgspec.Struct, frozen=True):
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


@functools.cache
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


def is_gone(process: Process) -> bool:
    """Whether it is known to be gone: it ran on this machine, and does not any more."""
    return process.machine == _machine() and _started(process.pid) != process.started and _sees_others()
