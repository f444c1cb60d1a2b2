"""kill -9 during uploads and collection: acknowledged content is intact, the rest leaves no trace."""

import asyncio
import os
import random
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once

KILLS = 6


async def bring_until_killed(url: str, lines: int) -> list[str]:
    """Kill the process; return the artifacts that were acknowledged to it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.crashes.upload", url, stdout=PIPE)
    assert process.stdout is not None
    heard = [await process.stdout.readline() for _ in range(lines)]
    process.kill()
    heard += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    return [line.decode().split()[1] for line in heard if line.endswith(b"\n")]


def files(queue: Queue) -> list[Path]:
    assert queue.engine.blob_store is not None
    folder = Path(queue.engine.blob_store.url.removeprefix("file://"))
    return [file for file in folder.rglob("*") if file.is_file()]


async def content(queue: Queue, artifact_id: str) -> bytes:
    return b"".join([block async for block in queue.artifacts.get(artifact_id)])


async def test_killed_uploads_lose_nothing_acknowledged_and_leave_no_files(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        await queue.submit(type="code", id="owner")
        await queue.settings.set("artifacts.keep_unreferenced_sec", 0)
    chance = random.Random(7)
    kept: list[str] = []
    for _ in range(KILLS):
        kept += await bring_until_killed(store_url, chance.randrange(1, 10))
    async with Queue.open(store_url) as queue:
        for artifact_id in kept:
            assert len(await content(queue, artifact_id)) == (await queue.artifacts.info(artifact_id)).size
        for file in files(queue):
            os.utime(file, (1, 1))
        await run_once(queue.engine, force=True)
        left = {file.name.partition("-")[0] for file in files(queue)}
        used = {each.id.rpartition("-")[2] for each in await queue.artifacts.list("owner")}
        assert left == used, "acknowledged or at least written; nothing else lies there"
