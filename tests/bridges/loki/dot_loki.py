"""A `.loki` folder as its scripts see it."""

import asyncio
import fcntl
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shiftwork import Queue
from shiftwork.compat.bridges.loki.bridge import Bridge
from shiftwork.model import ids
from tests.conformance.steps import take
from tests.services import tools

STARTED: list[asyncio.subprocess.Process] = []
"""Bridges of the test that runs now."""
QUEUES = ("pending", "in-progress", "completed", "dead-letter", "cancelled")

# Word for word as the document has it.
CLAIM_SCRIPT = r"""#!/bin/bash
# Atomic task claim using flock

QUEUE_FILE=".loki/queue/pending.json"
LOCK_FILE=".loki/state/locks/queue.lock"

(
  flock -x -w 10 200 || exit 1

  # Read, claim, write atomically
  TASK=$(jq -r '.tasks | map(select(.claimedBy == null)) | .[0]' "$QUEUE_FILE")
  if [ "$TASK" != "null" ]; then
    TASK_ID=$(echo "$TASK" | jq -r '.id')
    jq --arg id "$TASK_ID" --arg agent "$AGENT_ID" \
      '.tasks |= map(if .id == $id then .claimedBy = $agent | .claimedAt = now else . end)' \
      "$QUEUE_FILE" > "${QUEUE_FILE}.tmp" && mv "${QUEUE_FILE}.tmp" "$QUEUE_FILE"
    echo "$TASK_ID"
  fi

) 200>"$LOCK_FILE"
"""


class DotLoki:
    """One folder. Changes here are made as by a script, under the lock."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.path = project / ".loki"

    def make(self) -> None:
        (self.path / "queue").mkdir(parents=True, exist_ok=True)
        (self.path / "state" / "locks").mkdir(parents=True, exist_ok=True)

    def file(self, queue: str) -> Path:
        return self.path / "queue" / f"{queue}.json"

    def tasks(self, queue: str) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = json.loads(self.file(queue).read_text())["tasks"]
        return tasks

    def ids(self, queue: str) -> list[str]:
        return [task.get("id", "") for task in self.tasks(queue)]

    def where(self, task_id: str) -> list[str]:
        """The files that list a task."""
        return [queue for queue in QUEUES if plain(task_id) in self.ids(queue)]

    def one(self, task_id: str) -> dict[str, Any]:
        (queue,) = self.where(task_id)
        return next(task for task in self.tasks(queue) if task.get("id") == plain(task_id))

    @contextmanager
    def locked(self) -> Iterator[None]:
        with (self.path / "state" / "locks" / "queue.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def put(self, queue: str, *tasks: dict[str, Any]) -> None:
        """Add tasks to a file."""
        self.make()
        before = self.tasks(queue) if self.file(queue).exists() else []
        with self.locked():
            self.file(queue).write_text(json.dumps({"tasks": [*before, *tasks]}))

    def change(self, task_id: str, **fields: Any) -> None:
        """Change fields of a task in its file."""
        (queue,) = self.where(task_id)
        self.move(task_id, queue, **fields)

    def move(self, task_id: str, queue: str, **fields: Any) -> None:
        """The document's `move_task`, with what it writes into the task before."""
        task = {**self.one(task_id), **fields}
        (before,) = self.where(task_id)
        with self.locked():
            left = [other for other in self.tasks(before) if other.get("id") != task["id"]]
            self.file(before).write_text(json.dumps({"tasks": left}))
            self.file(queue).write_text(json.dumps({"tasks": [*self.tasks(queue), task]}))

    async def claim(self, agent: str) -> str | None:
        """The document's own script; the id it prints, or None."""
        known = {**tools.environment(), "AGENT_ID": agent}
        process = await asyncio.create_subprocess_exec(
            tools.bash(), "-c", CLAIM_SCRIPT, cwd=self.project, env=known, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out.decode().strip() or None


def plain(task_id: str) -> str:
    return ids.parse(task_id) or task_id


async def bridged(queue: Queue, folder: DotLoki, *, two_way: bool = False, **options: Any) -> Bridge:
    """Open a bridge; in two-way mode, wait until every process of the test knows the setting."""
    if two_way:
        await queue.settings.set("claim_folder", str(folder.path))
    bridge = Bridge(queue, folder.path, 10, two_way=two_way, **options)
    await bridge.open()
    return bridge


async def enqueue(queue: Queue, number: int = 0, **fields: Any) -> str:
    return (await queue.submit(type="eng-backend", payload={"n": number}, **fields)).id


async def dead(queue: Queue, number: int = 0) -> str:
    task_id = await enqueue(queue, number, max_attempts=1)
    await queue.fail((await take(queue)).token, "crash", "no database")
    return task_id


async def claimed(queue: Queue, folder: DotLoki) -> tuple[Bridge, str]:
    """A two-way bridge, and a task that it knows to be the claim of `script-1`."""
    bridge = await bridged(queue, folder, two_way=True)
    task_id = await enqueue(queue)
    await bridge.run_until_stable()
    assert await folder.claim("script-1") == plain(task_id)
    await bridge.run_until_stable()
    return bridge, task_id


async def start_bridge(url: str, folder: DotLoki, *options: str) -> asyncio.subprocess.Process:
    """The command, once it has made its first pass."""
    line = ["-m", "shiftwork", "--store", url, "bridge", "loki", str(folder.path), "--two-way", *options]
    process = await asyncio.create_subprocess_exec(sys.executable, *line, stdout=asyncio.subprocess.PIPE)
    STARTED.append(process)
    assert process.stdout is not None
    assert b"file" in await process.stdout.readline()
    return process
