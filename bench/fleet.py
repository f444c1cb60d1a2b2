"""Worker processes for a measurement, and their CPU time and memory."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bench.processor import TICKS
from shiftwork import Queue
from shiftwork.engine.lanes import TARGETED
from shiftwork.store.store import Tx
from shiftwork.worker.child_process import Start

PATIENCE_SEC = 300.0
ROOT = Path(__file__).resolve().parents[1]


class Member:
    """One worker process."""

    def __init__(self, process: asyncio.subprocess.Process, runtime_id: str) -> None:
        self.process = process
        self.runtime_id = runtime_id

    def cpu(self) -> float:
        """Return the CPU seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mib(self) -> float:
        return resident_mib(self.process.pid)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@asynccontextmanager
async def fleet(queue: Queue, count: int, concurrency: int) -> AsyncIterator[Sequence[Member]]:
    """Start workers and yield once they wait for work; stop them afterwards."""
    members: list[Member] = []
    try:
        for number in range(count):
            runtime_id = f"bench-{number}"
            start = Start(
                target="bench.handlers:worker",
                url=queue.url,
                agent_id=runtime_id,
                runtime_id=runtime_id,
                concurrency=concurrency,
            )
            process = await asyncio.create_subprocess_exec(
                *start.command, cwd=ROOT, env={**start.environment, "PYTHONPATH": str(ROOT)},
                stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            members.append(Member(process, runtime_id))
        await _wait_until_up(queue, members)
        yield members
    finally:
        await asyncio.gather(*(_end(member.process) for member in members))


async def _wait_until_up(queue: Queue, members: Sequence[Member]) -> None:
    wanted = {member.runtime_id for member in members}
    async with asyncio.timeout(60):
        while not wanted <= {runtime.id for runtime in await queue.runtimes.list()}:
            if any(member.process.returncode is not None for member in members):
                raise RuntimeError("a worker process ended before it began")
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)  # the first claim follows the first heartbeat


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def finished(queue: Queue, count: int, *, poll_sec: float = 0.1) -> None:
    """Wait until this many tasks are completed, cancelled or dead letters.

    Counts them only once nothing is ready any more: counting a large queue all the time would distort the figures.
    """

    async def some_are_ready(tx: Tx) -> bool:
        rows = await tx.all("open_lanes", bound=TARGETED, workspace=queue.workspace, agent="", counted=False)
        return any(row["lane"] is not None for row in rows)

    async with asyncio.timeout(PATIENCE_SEC):
        while await queue.engine.store.read(some_are_ready) or await _ended(queue) < count:  # noqa: ASYNC110  # another process
            await asyncio.sleep(poll_sec)


async def _ended(queue: Queue) -> int:
    counts = (await queue.status()).counts
    return sum(counts.get(status, 0) for status in ("completed", "cancelled", "dead_lettered", "failed"))
