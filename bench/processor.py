"""CPU time of processes, including their descendants."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def seconds_of_tree(roots: Sequence[int]) -> float:
    """Return the CPU seconds of these processes and their descendants; parents include children that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended just now
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(int(fields[n]) for n in (11, 12, 13, 14))
    return sum(used for pid, used in ticks.items() if _descends(pid, roots, parents)) / TICKS


def _descends(pid: int, roots: Sequence[int], parents: dict[int, int]) -> bool:
    while pid and pid not in roots:
        pid = parents.get(pid, 0)
    return pid in roots
