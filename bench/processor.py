"""Processor time of processes, with all that they started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def seconds_of_tree(roots: Sequence[int]) -> float:
    """What these processes and their descendants used; what has ended is counted by its parent."""
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
