"""Sees when the machine itself stands still: its host gives the processors to others, and nothing here runs.

One small process on each core sleeps two milliseconds at a time, with a priority above all that is measured, so that
our own work cannot hold it up. When it wakes late nonetheless, the machine stood still meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SLEEP_SEC = 0.002
STALL_SEC = 0.001
"""A sleep of this priority ends a tenth of a millisecond late; from here on something else held it up."""

_files: list[Path] = []


@contextmanager
def watching() -> Iterator[bool]:
    """Whether someone watches; not where the system has no such priorities or does not allow them."""
    with tempfile.TemporaryDirectory(prefix="shiftwork-witness-") as folder:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        _files[:] = [Path(folder) / str(core) for core in cores]
        started = [_start(core, file) for core, file in zip(cores, _files, strict=True)]
        try:
            up = [_is_up(process, file) for process, file in zip(started, _files, strict=True)]
            yield bool(up) and all(up)
        finally:
            for process in started:
                process.terminate()
                process.wait()
            _files.clear()


def _start(core: int, file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.witness", str(core), str(file)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[1], stderr=subprocess.DEVNULL)


def _is_up(process: subprocess.Popen[bytes], file: Path) -> bool:
    while process.poll() is None:
        if file.exists():
            return True
        time.sleep(0.01)
    return False


def stalls() -> list[tuple[float, float]]:
    """From when to when some core stood still, on the clock of `time.perf_counter`, in order."""
    found = []
    for file in _files:
        lines = file.read_text(encoding="ascii").splitlines() if file.exists() else []
        found += [(float(began), float(ended)) for began, _, ended in (line.partition(" ") for line in lines)]
    return sorted(found)


def share(began: float, ended: float) -> float:
    """How much of this time a core stood still, on average."""
    stood = sum(max(0.0, min(ended, end) - max(began, start)) for start, end in stalls())
    return stood / (ended - began) / max(1, len(_files))


def undisturbed(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those of the spans during which the machine never stood still."""
    stood = stalls()
    begins = [began for began, _ in stood]
    ends = sorted(ended for _, ended in stood)
    # During a free span none was under way: as many have begun before its end as had ended before its beginning.
    return [span for span in spans if bisect_left(begins, span[1]) == bisect_left(ends, span[0])]


def _watch(core: int, file: Path) -> None:
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    parent = os.getppid()
    with file.open("w", encoding="ascii", buffering=1) as out:
        before = time.perf_counter()
        while os.getppid() == parent:
            time.sleep(SLEEP_SEC)
            now = time.perf_counter()
            if now - before > SLEEP_SEC + STALL_SEC:
                out.write(f"{before:.6f} {now:.6f}\n")
            before = now


if __name__ == "__main__":
    _watch(int(sys.argv[1]), Path(sys.argv[2]))
