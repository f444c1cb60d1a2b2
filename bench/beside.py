"""Ours beside a peer, which does the same in turn: a rate is of a machine and an hour, a ratio is not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from bench.fleet import ROOT, _end
from bench.latency import PICKUP_EVERY_SEC, picked_up
from bench.report import Bench, measurement, percentile
from bench.throughput import drained, load
from shiftwork import Queue

PATIENCE_SEC = 180.0
QUIET = asyncio.subprocess.DEVNULL
PEERS_FOLDER = ROOT / ".peers"


class Peer(NamedTuple):
    """A queue of others, in its best known form that is as durable as ours."""

    name: str
    program: str
    packages: tuple[str, ...]
    left: str
    """How many of its tasks are not done."""
    processes: tuple[int, ...]
    in_bulk: bool
    """Whether it has a call that submits many."""


PEERS = {
    "postgres": Peer(
        "pgqueuer",
        "on_pgqueuer.py",
        ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
        "select count(*) from pgqueuer",
        (1, 2),
        in_bulk=True,
    ),
    "sqlite": Peer("huey", "on_huey.py", ("huey==3.5.4",), "select count(*) from task", (1,), in_bulk=False),
}


@measurement
async def beside(bench: Bench) -> None:
    """Theirs and ours in turn, by as many processes. Theirs keep no history, no results and no fences."""
    peer = PEERS[bench.place.name]
    try:
        python = await asyncio.to_thread(install, peer)
    except RuntimeError as error:
        print(f"{bench.place.name:<9} beside       {error}", flush=True)
        return
    for processes in peer.processes:
        await _compare_drains(bench, peer, python, processes)
    if peer.in_bulk:
        await _compare_bulk(bench, peer, python)
    await _compare_pickup(bench, peer, python)


async def _compare_drains(bench: Bench, peer: Peer, python: Path, processes: int) -> None:
    count = bench.size(20_000, 500)
    ours, theirs = [], []
    for _ in range(bench.repetitions):
        ours.append((await drained(bench, count, processes))[0])
        theirs.append(await _drain(bench, peer, python, count, processes))
    by = f"{processes} worker process{'es' if processes > 1 else ''}"
    bench.figure(f"{peer.name}: {count:,} no-ops, {by}", theirs, "tasks/s")
    _tell_ratio(bench, peer, by, ours, theirs)


async def _compare_bulk(bench: Bench, peer: Peer, python: Path) -> None:
    """One caller, batches of 1000."""
    count = bench.size(20_000, 1_000)
    ours, theirs = [], []
    for _ in range(bench.repetitions):
        async with bench.place.url() as url, await Queue.open(url) as queue:
            await load(queue, 1000)
            began = time.perf_counter()
            await load(queue, count)
            ours.append(count / (time.perf_counter() - began))
        async with bench.place.url() as url:
            theirs.append(count / float(await _run(peer, python, "fill", url, str(count))))
    bench.figure(f"{peer.name}: submit in batches of 1000", theirs, "tasks/s")
    _tell_ratio(bench, peer, "submit in batches of 1000", ours, theirs)


async def _compare_pickup(bench: Bench, peer: Peer, python: Path) -> None:
    """Theirs by ours, so that more than one is quicker than the peer, as above."""
    count = bench.size(100, 20)
    ours, theirs = [], []
    for _ in range(bench.repetitions):
        ours.append((await picked_up(bench, count)).at(0.5))
        theirs.append(await _pickup(bench, peer, python, count))
    bench.figure(f"{peer.name}: submit to start in an idle worker, p50", theirs, "ms")
    _tell_ratio(bench, peer, "submit to start, p50", theirs, ours)


def _tell_ratio(bench: Bench, peer: Peer, what: str, better: Sequence[float], worse: Sequence[float]) -> None:
    ratios = [one / other for one, other in zip(better, worse, strict=True)]
    bench.figure(f"ours beside {peer.name}, {what}", ratios, "times")


def install(peer: Peer) -> Path:
    """The Python that has the peer, in a folder of its own: it may want other versions than we do."""
    folder = PEERS_FOLDER / peer.name
    python = folder / "bin" / "python"
    done = folder / ".installed"
    wanted = "\n".join(peer.packages)
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return python
    quiet = ("-m", "pip", "install", "-qq", "--disable-pip-version-check")
    for command in ([sys.executable, "-m", "venv", str(folder)], [str(python), *quiet, *peer.packages]):
        output = subprocess.run(command, capture_output=True, text=True, check=False)
        if output.returncode:
            last = (output.stderr or output.stdout).strip().splitlines()[-1:]
            raise RuntimeError(f"{peer.name} could not be installed, so nothing stands beside ours: {' '.join(last)}")
    done.write_text(wanted, encoding="utf-8")
    return python


async def _run(peer: Peer, python: Path, verb: str, url: str, *words: str) -> str:
    """What a program of the peer says when it has ended."""
    command = [str(python), str(ROOT / "bench" / "peers" / peer.program), verb, url.removeprefix("sqlite:///"), *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    stated, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{peer.name} could not {verb}")
    return stated.decode()


async def _drain(bench: Bench, peer: Peer, python: Path, count: int, processes: int) -> float:
    """From the first task begun to the last one gone from its table."""
    async with bench.place.url() as url:
        await _run(peer, python, "fill", url, str(count))
        await bench.place.settle(url)
        async with _at_work(peer, python, url, processes) as marks:
            return await _timed(bench, peer, url, marks, count)


async def _pickup(bench: Bench, peer: Peer, python: Path, count: int) -> float:
    """The median, in milliseconds."""
    async with bench.place.url() as url:
        await _run(peer, python, "fill", url, "1")
        async with _at_work(peer, python, url, 1) as marks, asyncio.timeout(PATIENCE_SEC):
            while not _size(marks):  # noqa: ASYNC110  # another process: once it has done that one it is idle
                await asyncio.sleep(0.05)
            await _run(peer, python, "send", url, str(count), str(PICKUP_EVERY_SEC))
            while len(lines := marks.read_text(encoding="ascii").split()) < count:  # noqa: ASYNC110  # the same
                await asyncio.sleep(0.05)
            return percentile([int(line.lstrip(".")) / 1e6 for line in lines], 0.5)


@asynccontextmanager
async def _at_work(peer: Peer, python: Path, url: str, processes: int) -> AsyncIterator[Path]:
    """Its workers; the file to which they write what they did."""
    program = str(ROOT / "bench" / "peers" / peer.program)
    with tempfile.TemporaryDirectory(prefix="shiftwork-peer-") as folder:
        marks = Path(folder) / "marks"
        async with _workers([str(python), program, "work", url.removeprefix("sqlite:///"), str(marks)], processes):
            yield marks


@asynccontextmanager
async def _workers(command: list[str], count: int) -> AsyncIterator[None]:
    started = [await asyncio.create_subprocess_exec(*command, stdout=QUIET, stderr=QUIET) for _ in range(count)]
    try:
        yield
    finally:
        await asyncio.gather(*(_end(process) for process in started))


async def _timed(bench: Bench, peer: Peer, url: str, marks: Path, count: int) -> float:
    async with asyncio.timeout(PATIENCE_SEC):
        while not (first := _size(marks)):  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.001)
        began = time.perf_counter()
        while _size(marks) < count:  # noqa: ASYNC110  # the same
            await asyncio.sleep(0.002)
        while (await bench.place.sql(url, peer.left))[0][0]:  # noqa: ASYNC110  # the same
            await asyncio.sleep(0.002)
        return (count - first) / (time.perf_counter() - began)


def _size(marks: Path) -> int:
    return marks.stat().st_size if marks.exists() else 0
