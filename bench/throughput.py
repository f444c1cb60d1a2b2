"""Throughput: submit, claim and complete, and a backlog drained by worker processes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.fleet import finished, fleet
from bench.report import Bench, measurement, requirement
from shiftwork import Completion, Queue

AT_ONCE = 1000
"""Two claims of 500, the most that a worker asks for: one is in progress while the other is claimed or completed."""

NOOP: dict[str, Any] = {"type": "noop", "payload": {"n": 1}}


async def load(queue: Queue, count: int, task: dict[str, Any] | None = None) -> None:
    """Submit this many tasks in batches of 1000."""
    for first in range(0, count, 1000):
        await queue.submit_many([task or NOOP] * min(1000, count - first))


@measurement
async def submit(bench: Bench) -> None:
    """Measure submitted tasks per second: one at a time, by many concurrent callers, and in bulk."""
    alone, together, bulk, two = [], [], [], []
    for _ in range(bench.repetitions):
        async with bench.place.url() as url, await Queue.open(url) as queue:
            await load(queue, 1000)
            alone.append(await _one_by_one(queue, bench.size(500, 100)))
            together.append(await _by_many(queue, bench.size(10_000, 2_000)))
            count = bench.size(50_000, 4_000)
            began = time.perf_counter()
            await load(queue, count)
            bulk.append(count / (time.perf_counter() - began))
            began = time.perf_counter()
            await asyncio.gather(load(queue, count // 2), load(queue, count // 2))
            two.append(count / (time.perf_counter() - began))
    bench.figure("one by one", alone, "tasks/s")
    bench.figure("200 callers at once, coalesced", together, "tasks/s")
    bench.figure("in batches of 1000", bulk, "tasks/s")
    bench.figure("in batches of 1000, two at a time", two, "tasks/s")


async def _one_by_one(queue: Queue, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        await queue.submit(NOOP)
    return count / (time.perf_counter() - began)


async def _by_many(queue: Queue, count: int, callers: int = 200) -> float:
    async def caller() -> None:
        for _ in range(count // callers):
            await queue.submit(NOOP)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return count / (time.perf_counter() - began)


@measurement
async def batches(bench: Bench) -> None:
    """Measure claim and complete in this process: claim 500 while the previous 500 are completed."""
    rates, ours, theirs = [], [], []
    count = bench.size(20_000, 2_000)
    for _ in range(bench.repetitions):
        async with bench.place.url() as url, await Queue.open(url) as queue:
            await queue.agents.register(id="bench", max_concurrent_tasks=None)
            await load(queue, count)
            await bench.place.settle(url)
            cpu, server, began = time.process_time(), bench.place.server_cpu(), time.perf_counter()
            done = await drain_in_process(queue)
            rates.append(done / (time.perf_counter() - began))
            ours.append(1e6 * (time.process_time() - cpu) / done)
            theirs.append(1e6 * (bench.place.server_cpu() - server) / done)
    bench.figure("claim 500 + complete 500, pipelined", rates, "tasks/s")
    bench.figure("processor time of this process", ours, "us/task")
    if bench.place.name == "postgres":
        bench.figure("processor time of the server", theirs, "us/task")


async def drain_in_process(queue: Queue, batch: int = 500) -> int:
    done, last = 0, None
    while assignments := await queue.claim("bench", batch, start=True):
        if last is not None:
            await last
        reports = [Completion(1, token=assignment.token) for assignment in assignments]
        last = asyncio.create_task(queue.batch.complete(reports))
        done += len(assignments)
    if last is not None:
        await last
    return done


@measurement
@requirement("C-108")
async def drain(bench: Bench) -> None:
    """Measure how fast worker processes drain a backlog of no-op tasks, from the first claim to the last result."""
    count = bench.size(20_000, 2_000)
    slowest = 0.0
    for processes in (1, 2):
        rates, workers, servers = [], [], []
        for _ in range(bench.size(3, 1)):
            rate, worker, server = await drained(bench, count, processes)
            rates.append(rate)
            workers.append(worker)
            servers.append(server)
        plural = "es" if processes > 1 else ""
        bench.figure(f"{count:,} no-ops, {processes} worker process{plural}", rates, "tasks/s")
        bench.figure(f"  processor time of the worker{'s' if plural else ''}", workers, "us/task")
        if bench.place.name == "postgres":
            bench.figure("  processor time of the server", servers, "us/task")
        slowest = min([slowest or rates[0], *rates])
    bench.check("C-108", "no-op tasks completed per minute", 60 * slowest, 1000, "tasks/min", at_least=True)


async def drained(bench: Bench, count: int, processes: int) -> tuple[float, float, float]:
    """Return tasks a second, and the CPU microseconds per task of the workers and of the server."""
    place = bench.place
    async with place.url() as url, await Queue.open(url) as queue:
        await load(queue, count)
        await place.settle(url)
        await queue.control.pause()
        async with fleet(queue, processes, AT_ONCE) as members:
            used, server = sum(member.cpu() for member in members), place.server_cpu()
            await queue.control.resume()
            await finished(queue, count)
            used = sum(member.cpu() for member in members) - used
            server = place.server_cpu() - server
        rows = await place.sql(url, "select max(ended_at) - min(claimed_at) from attempts")
        return count / rows[0][0], 1e6 * used / count, 1e6 * server / count
