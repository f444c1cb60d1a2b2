"""Identifies processes by id and start time, so that others on the same machine can check them."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import msgspec


class Process(msgspec.Struct, frozen=True):
    """A process, identified so that others on its machine can check it."""

    machine: str
    pid: int
    started: str


def this_process() -> Process | None:
    return process_of(os.getpid())


def process_of(pid: int) -> Process | None:
    """The process that has this id now; None if that cannot be determined."""
    machine, started = _machine(), _started(pid)
    return Process(machine, pid, started) if machine and started else None


@functools.cache
def _machine() -> str | None:
    """The current boot of this machine, and the namespace of its process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115  # the link's target does not exist
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When the process started, in the kernel's ticks; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in {"Z", "X"} else fields[19]
    except (OSError, IndexError):
        return None


def _sees_others() -> bool:
    """Whether processes of other users are visible; if not, an unseen process may be alive."""
    return _started(1) is not None


def is_gone(process: Process) -> bool:
    """Whether it is known to be gone: it ran on this machine and no longer does."""
    return process.machine == _machine() and _started(process.pid) != process.started and _sees_others()
