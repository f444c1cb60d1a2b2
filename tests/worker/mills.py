"""A fleet in separate processes, and helpers for its tests, with a database or a server."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shiftwork import Queue
from tests.worker.started import Started
from tests.worker.steps import PATIENCE_SEC, until, verbs

ROOT = Path(__file__).resolve().parents[2]


class Mill(Started):
    """A fleet of `tests.worker.mill` in processes of its own, and the folder in which its handlers talk to us."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(folder)
        self._url = url

    def start(self, processes: int, *, until_idle: bool = False) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.worker.start", self._url, str(processes), *(["idle"] * until_idle)]
        return self.spawn(command, ROOT)

    def holders(self, task_id: str) -> list[int]:
        """The processes that have begun to work on a task, in the order of their claims."""
        notes = self.folder.glob(f"{task_id}.*")
        by_fence = sorted((int(fence), int(pid)) for fence, pid in (note.name.split(".")[-2:] for note in notes))
        return [pid for _, pid in by_fence]

    async def holder(self, task_id: str, nth: int = 1) -> int:
        """Return the process that works on a task, or its n-th holder."""
        await until(lambda: len(self.holders(task_id)) >= nth)
        return self.holders(task_id)[nth - 1]

    def go(self) -> None:
        (self.folder / "go").touch()


@contextmanager
def running_mill(url: str, tmp_path: Path) -> Iterator[Mill]:
    made = Mill(url, tmp_path / "mill")
    try:
        yield made
    finally:
        made.end()


def mill_task(mill: Mill, type_: str = "grind", **answer: Any) -> dict[str, Any]:
    return {"type": type_, "payload": {"folder": str(mill.folder), **answer}}


async def submit(queue: Queue, mill: Mill, count: int = 1, type_: str = "grind", **answer: Any) -> list[str]:
    fields = mill_task(mill, type_, **answer)
    return [made.id for made in await queue.submit_many([fields] * count)]


async def done_once(queue: Queue, task_ids: list[str]) -> bool:
    return all([(await verbs(queue, task_id)).count("completed") == 1 for task_id in task_ids])


async def stop(mill: subprocess.Popen[bytes]) -> int:
    mill.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(mill.wait, PATIENCE_SEC)


async def kill_a_child(queue: Queue, mill: Mill) -> list[str]:
    """Kill a working child of a running fleet; its tasks lose an attempt and are completed by others."""
    fields = {**mill_task(mill), "retry": {"strategy": "immediate"}}  # a setting may be a second old elsewhere
    tasks = [made.id for made in await queue.submit_many([fields] * 4)]
    victim = await mill.holder(tasks[0])
    for task in tasks:
        await mill.holder(task)
    lost = [task for task in tasks if mill.holders(task) == [victim]]
    os.kill(victim, signal.SIGKILL)
    for task in lost:
        assert await mill.holder(task, 2) != victim
    mill.go()
    await until(lambda: done_once(queue, tasks))
    for task in lost:
        assert await verbs(queue, task) == ["submitted", "claimed", "failed", "claimed", "completed"]
        assert (await queue.get(task)).attempts == 1
    return lost
