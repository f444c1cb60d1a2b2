"""A process of the fleet: a server or a worker whose clock can be stepped and whose disk can be filled.

Run as a module: `serve PORT` or `work NAME WORLD`, on the store that SHIFTWORK_STORE names, with the controls of
SHIFTWORK_PROVE_CONTROLS. It ends when its standard input does, so that it never outlives the run.
"""

from __future__ import annotations

import functools
import mmap
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

import apsw

VARIABLE = "SHIFTWORK_PROVE_CONTROLS"
NO_LIMIT = 4_294_967_294
"""SQLite's default limit of pages."""


class Controls:
    """Numbers that the run and its processes share through a memory-mapped file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        if not file.exists():
            file.write_bytes(bytes(24))
        with file.open("r+b") as opened:
            self._numbers = memoryview(mmap.mmap(opened.fileno(), 24)).cast("d")

    @property
    def clock_sec(self) -> float:
        """The offset of the clocks."""
        return self._numbers[0]

    @clock_sec.setter
    def clock_sec(self, seconds: float) -> None:
        self._numbers[0] = seconds

    @property
    def max_pages(self) -> int:
        """The maximum number of pages of a SQLite file; 0 means no limit."""
        return int(self._numbers[1])

    @max_pages.setter
    def max_pages(self, pages: int) -> None:
        self._numbers[1] = pages

    @property
    def seen_sec(self) -> float:
        """The offset when a process last read its clock."""
        return self._numbers[2]

    def time(self, real: float) -> float:
        self._numbers[2] = offset = self._numbers[0]
        return real + offset


def install(controls: Controls) -> None:
    """Replace the clock. Call it before any import that keeps a reference to it."""
    real = time.time
    time.time = lambda: controls.time(real())
    apsw.connection_hooks.append(functools.partial(_limit, controls))


def _limit(controls: Controls, connection: apsw.Connection) -> None:
    """Set the limit, which applies per connection, before each connection's next transaction."""
    in_force = 0

    def trace(_cursor: Any, sql: str, _bindings: Any) -> bool:
        nonlocal in_force
        if sql.startswith("begin") and in_force != controls.max_pages:
            in_force = controls.max_pages
            connection.pragma("max_page_count", in_force or NO_LIMIT)
        return True

    connection.exec_trace = trace


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def main(what: str, *rest: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    install(Controls(Path(os.environ[VARIABLE])))
    if what == "serve":
        sys.argv = ["shiftwork", "serve", "--port", rest[0]]
        runpy.run_module("shiftwork", run_name="__main__")  # as users start it, after the clock was replaced
    else:
        from shiftwork.prove.fleet_handlers import worker  # noqa: PLC0415  # after the clock was replaced
        from shiftwork.worker.load_worker import run_fast  # noqa: PLC0415  # likewise

        name, world = rest
        run_fast(worker(name, Path(world)).run(os.environ["SHIFTWORK_STORE"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
