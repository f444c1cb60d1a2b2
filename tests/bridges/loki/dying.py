"""Does one thing with a folder and kills itself: `python -m tests.bridges.loki.dying URL FOLDER WHAT NUMBER`.

It is killed in the middle of the write with this number, counted from 1, half of the new file written.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from shiftwork import Queue
from shiftwork.compat.bridges.loki.bridge import Bridge
from shiftwork.compat.external import loki_folder

_whole = loki_folder.replace
_written: list[Path] = []
_deadly = 0


def replace(file: Path, text: bytes) -> None:
    _written.append(file)
    if len(_written) == _deadly:
        file.with_name(file.name + ".tmp").write_bytes(text[: len(text) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    _whole(file, text)


async def main(url: str, path: str, what: str) -> None:
    loki_folder.replace = replace
    async with Queue.open(url) as queue:
        if what == "claim":
            await queue.claim("doomed")
        else:
            await Bridge(queue, Path(path), 10, two_way=True).run_until_stable()


if __name__ == "__main__":
    _deadly = int(sys.argv[4])
    asyncio.run(main(*sys.argv[1:4]))
