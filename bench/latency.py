"""Latencies of single calls, and of a task until an idle worker starts it. Checks the documents' limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from bench.fleet import finished, fleet
from bench.report import Bench, measurement, requirement
from bench.throughput import NOOP, load
from bench.times import Times
from shiftwork import Queue
from shiftwork.model.errors import LeaseLost

T = TypeVar("T")
PICKUP_EVERY_SEC = 0.05
"""The pause between tasks, so that the worker is idle again for each; the same for the peers."""


@measurement
@requirement("F-161", "F-273")
async def pickup(bench: Bench) -> None:
    """Measure from the call of submit to the first line of the handler, in an idle worker process."""
    waits = await picked_up(bench, bench.size(200, 40))
    waits.show(bench, "submit to start in an idle worker process")
    bench.check("F-161", "submit to start in an idle worker, p99", waits.at(0.99), 1000, "ms")
    bench.check("F-273", "submit to start in an idle worker, p99", waits.at(0.99), 1000, "ms")


async def picked_up(bench: Bench, count: int) -> Times:
    waits = Times()
    async with bench.place.url() as url, await Queue.open(url) as queue, fleet(queue, 1, 10):
        sent: dict[str, float] = {}
        for _ in range(count):
            began = time.time()
            sent[(await queue.submit(type="stamp")).id] = began
            await asyncio.sleep(PICKUP_EVERY_SEC)
        await finished(queue, len(sent))
        for id_, began in sent.items():
            started = (await queue.result(id_)).data
            waits.add(1000 * (started - began), ended=time.perf_counter() - (time.time() - started))
    return waits


@measurement
@requirement("C-104", "C-105", "C-214", "C-215")
async def calls(bench: Bench) -> None:
    """Measure single calls, one after the other, each answered after its commit."""
    names = (
        "submit",
        "claim",
        "start",
        "heartbeat",
        "progress",
        "complete",
        "fail",
        "release",
        "cancel",
        "get",
        "status",
    )
    times = {name: Times() for name in names}
    async with bench.place.url() as url, await Queue.open(url) as queue:
        await queue.agents.register(id="bench", max_concurrent_tasks=None)
        await load(queue, 1000)
        await bench.place.settle(url)
        await _life(queue, {name: Times() for name in names})  # warm: caches, prepared statements
        for _ in range(bench.size(300, 40)):
            await _life(queue, times)
    for name in names:
        bench.figure(f"{name}, p50", [times[name].at(0.5)], "ms")
        bench.figure(f"{name}, p99", [times[name].at(0.99)], "ms")
    _check_calls(bench, times)


def _check_calls(bench: Bench, times: dict[str, Times]) -> None:
    assignment = times["claim"].at(0.99)
    bench.check("C-104", "claim with a task there, p99", assignment, 100, "ms")
    bench.check("C-214", "claim with a task there, p99", assignment, 100, "ms")
    moves = ("submit", "claim", "start", "complete", "fail", "release", "cancel")
    worst = max(times[name].at(0.99) for name in moves)
    bench.check("C-105", f"slowest of {', '.join(moves)}, p99", worst, 50, "ms")
    bench.check("C-215", "complete in the queue's process, commit included, p99", times["complete"].at(0.99), 5, "ms")


@measurement
@requirement("C-106", "C-216")
async def queries(bench: Bench) -> None:
    """Measure the document's Query (the status of the queue), and a task by its id, with 10,000 tasks queued."""
    times = {"status": Times(), "get": Times()}
    async with bench.place.url() as url, await Queue.open(url) as queue:
        task_id = (await queue.submit(NOOP)).id
        await load(queue, 9_999)
        await bench.place.settle(url)
        await queue.status()  # warm: caches, prepared statements
        for _ in range(bench.size(300, 40)):
            await times["status"].of(queue.status())
            await times["get"].of(queue.get(task_id))
    for name, taken in times.items():
        taken.show(bench, f"{name} with 10,000 tasks queued")
        bench.check("C-106", f"{name} with 10,000 tasks queued, p99", taken.at(0.99), 10, "ms")
        bench.check("C-216", f"{name} with 10,000 tasks queued, p99", taken.at(0.99), 50, "ms")


async def _life(queue: Queue, times: dict[str, Times]) -> None:
    """Take one task through most calls, and cancel another."""
    await times["submit"].of(queue.submit(NOOP))
    (held,) = await times["claim"].of(queue.claim("bench"))
    await times["release"].of(queue.release(held.token))
    (held,) = await times["claim"].of(queue.claim("bench"))
    await times["start"].of(queue.start(held.token))
    await times["heartbeat"].of(queue.heartbeat(held.token))
    await times["progress"].of(queue.claims.progress(held.token, {"pct": 50}))
    await times["complete"].of(queue.complete(held.token, {"ok": True}))
    (held,) = await times["claim"].of(queue.claim("bench", start=True))
    await times["fail"].of(queue.fail(held.token, "crash", "no"))
    await times["get"].of(queue.get(held.id))
    await times["cancel"].of(queue.cancel(held.id))
    await times["status"].of(queue.status())


@measurement
@requirement("C-107", "C-213", "C-255", "F-272")
async def crowd(bench: Bench) -> None:
    """Measure 120 agents in one process, each waiting for one task at a time, while 200 tasks a second arrive."""
    waits, submits = Times(), Times()
    agents, seconds = 120, bench.size(10, 2)
    async with bench.place.url() as url, await Queue.open(url) as queue, asyncio.TaskGroup() as group:
        working = [group.create_task(_agent(queue, f"agent-{n}", waits)) for n in range(agents)]
        await asyncio.sleep(1)
        await _submit_steadily(queue, submits, 200, seconds)
        await finished(queue, 200 * seconds)
        for task in working:
            task.cancel()
    submits.show(bench, f"submit, with {agents} agents at work")
    waits.show(bench, f"submit to claimed by one of {agents} agents")
    bench.check("C-107", "agents that work at once", agents, 100, "agents", at_least=True)
    bench.check("C-213", f"submit at 200/s with {agents} agents at work, p99", submits.at(0.99), 10, "ms")
    bench.check("C-255", f"submit to claimed at 200/s, one of {agents} agents, p99", waits.at(0.99), 1000, "ms")
    bench.check("F-272", f"submit to claimed at 200/s, one of {agents} agents, p50", waits.at(0.50), 10, "ms")


async def _agent(queue: Queue, name: str, waits: Times) -> None:
    while True:
        for held in await queue.claim(name, start=True, wait=20):
            waits.add(1000 * (time.perf_counter() - held.payload["sent"]))
            await queue.complete(held.token)


async def _submit_steadily(queue: Queue, times: Times, per_second: int, seconds: int) -> None:
    """Submit each task at its scheduled time, whether or not the previous call has been answered."""
    loop = asyncio.get_running_loop()
    began, under_way = loop.time(), []
    for number in range(per_second * seconds):
        await asyncio.sleep(max(0.0, began + number / per_second - loop.time()))
        sent = {"type": "noop", "payload": {"sent": time.perf_counter()}}
        under_way.append(asyncio.create_task(times.of(queue.submit(sent))))
    await asyncio.gather(*under_way)


@measurement
@requirement("F-272")
async def stampede(bench: Bench) -> None:
    """Count the transactions that one task causes while 50 claims wait, including its submit and its claim."""
    tasks = bench.size(50, 10)
    async with bench.place.url() as url, await Queue.open(url) as queue:
        waiting = [asyncio.create_task(queue.claim(f"agent-{n}", wait=25)) for n in range(50)]
        await asyncio.sleep(0.5)
        counted = _count_transactions(queue)
        for _ in range(tasks):
            await queue.submit(NOOP)
            await asyncio.sleep(0.05)
        got = sum(task.done() for task in waiting)
        transactions = counted[0] / tasks
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    bench.figure("50 waiting claims: transactions per task", [transactions], "tx", f"{got} of {tasks} taken")
    bench.check("F-272", "transactions set off by one task, 50 claims waiting", transactions, 10, "tx")


def _count_transactions(queue: Queue) -> list[int]:
    store: Any = queue.engine.store
    run, counted = store.run, [0]

    async def counting(verb: Any, /) -> Any:
        counted[0] += 1
        return await run(verb)

    store.run = counting
    return counted


@measurement
@requirement("C-259")
async def conflicts(bench: Bench) -> None:
    """Measure a claim that loses a race, and a refused write under a lost claim."""
    losing, stale = Times(), Times()
    async with bench.place.url() as url, await Queue.open(url) as one, await Queue.open(url) as two:
        for number in range(bench.size(200, 30)):
            await one.submit(NOOP)
            answers = await asyncio.gather(_timed(one.claim("a", start=True)), _timed(two.claim("b", start=True)))
            for took in (took for took, held in answers if not held):
                losing.add(took)
            (held,) = next(held for _, held in answers if held)
            await one.release(held.token)
            (again,) = await one.claim(f"c-{number}", start=True)
            with suppress(LeaseLost):
                await stale.of(two.complete(held.token, {"late": True}))
            await one.complete(again.token)
    losing.show(bench, "claim that loses a race for the last task")
    stale.show(bench, "result under a lost claim, refused")
    worst = max(losing.at(0.99), stale.at(0.99))
    bench.check("C-259", "losing claim or refused stale write, p99", worst, 10, "ms")


async def _timed(call: Awaitable[T]) -> tuple[float, T]:
    began = time.perf_counter()
    answer = await call
    return 1000 * (time.perf_counter() - began), answer


@measurement
@requirement("F-109")
async def cycle(bench: Bench) -> None:
    """Measure adding a dependency in a DAG of 100 tasks, including the check for cycles."""
    times = Times()
    async with bench.place.url() as url, await Queue.open(url) as queue:
        for _ in range(bench.size(20, 4)):
            chain = [{"key": f"t{n}", "type": "noop", "dependencies": [f"t{n - 1}"] if n else []} for n in range(100)]
            tasks = await queue.submit_dag({"tasks": chain})
            for place in (10, 30, 50, 70, 99):
                new = {"dependencies": [tasks[place - 1].id, tasks[place // 2].id]}
                await times.of(queue.tasks.update(tasks[place].id, new))
    times.show(bench, "dependency added in a DAG of 100 tasks")
    bench.check("F-109", "dependency added in a DAG of 100 tasks, p99", times.at(0.99), 10, "ms")
