"""Copies and stops in the middle, to be killed there: `python -m tests.copying.stopper copy|restore|save FROM TO`.

It prints `stopped` once rows of tasks were copied, and then waits forever.
"""

import asyncio
import sys
import time
from pathlib import Path

from shiftwork.snapshots.copy import copy, restore, save


def stop(table: str, _rows: int) -> None:
    if table == "tasks":
        print("stopped", flush=True)  # noqa: T201 -- for the test that reads it
        sys.stdin.read()


async def main(what: str, source: str, target: str) -> None:
    if what == "copy":
        await copy(source, target, progress=stop)
    elif what == "restore":
        await restore(Path(source), target, progress=stop)
    else:
        await save(source, Path(target), time.time(), stop)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
