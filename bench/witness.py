"""Detects stalls of the machine itself, when its host gives the processors to other guests.

One small process per core sleeps two milliseconds at a time. Its priority is above everything measured, so our own
load cannot delay it. If it still wakes late, the machine stalled.
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
"""At this priority a sleep normally ends a tenth of a millisecond late; a longer delay is a stall."""

_files: list[Path] = []


@contextmanager
def watching() -> Iterator[bool]:
    """Watch every core. Yields False if the system has no real-time priorities or does not permit them."""
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
    """Return the begin and end of each stall of a core, by `time.perf_counter`, in order."""
    found = []
    for file in _files:
        lines = file.read_text(encoding="ascii").splitlines() if file.exists() else []
        found += [(float(began), float(ended)) for began, _, ended in (line.partition(" ") for line in lines)]
    return sorted(found)


def share(began: float, ended: float) -> float:
    """Return the share of this time during which a core was stalled, on average."""
    stood = sum(max(0.0, min(ended, end) - max(began, start)) for start, end in stalls())
    return stood / (ended - began) / max(1, len(_files))


def undisturbed(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spans during which no core stalled."""
    stood = stalls()
    begins = [began for began, _ in stood]
    ends = sorted(ended for _, ended in stood)
    # No stall overlaps a span if as many stalls began before its end as ended before its beginning.
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
