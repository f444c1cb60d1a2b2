"""Growth: claims from a deep backlog, throughput with more workers, memory over many tasks."""

from __future__ import annotations

import os
import statistics
import time

from bench.fleet import finished, fleet, resident_mib
from bench.report import Bench, measurement, requirement
from bench.stores import Place
from bench.throughput import NOOP, drain_in_process, load
from bench.times import Times
from shiftwork import Completion, Queue

CLAIMS = {1: 20, 50: 6}
"""The number of timed claims of each size; together they take fewer tasks than the smallest backlog holds."""


@measurement
@requirement("C-258")
async def depth(bench: Bench) -> None:
    """Measure claims of 1 and of 50 with few and many ready tasks of mixed priority: cold, and settled."""
    settled: dict[tuple[int, int], float] = {}
    for ready in bench.sizes((1_000, 10_000, 100_000, 1_000_000), (1_000, 10_000)):
        async with bench.place.url() as url, await Queue.open(url) as queue:
            await queue.agents.register(id="bench", max_concurrent_tasks=None)
            await _fill(bench, queue, url, ready)
            for state in ("cold", "settled"):
                if state == "settled":
                    await bench.place.settle(url)
                    await _claims(queue, 1)
                for most in CLAIMS:
                    times = await _claims(queue, most)
                    settled[ready, most] = times.at(0.5)
                    bench.figure(f"claim {most} of {ready:,} ready, {state}, p50", [times.at(0.5)], "ms")
                    if (ready, most, state) == (10_000, 1, "settled"):
                        bench.check("C-258", "claim with 10,000 queued, p99", times.at(0.99), 100, "ms")
    deepest, least = max(ready for ready, _ in settled), min(ready for ready, _ in settled)
    for most in CLAIMS:
        ratio = settled[deepest, most] / settled[least, most]
        bench.figure(f"claim {most}: {deepest:,} against {least:,} ready, settled", [ratio], "times")


async def _claims(queue: Queue, most: int) -> Times:
    times = Times()
    for _ in range(CLAIMS[most]):
        held = await times.of(queue.claim("bench", most, start=True))
        await queue.batch.complete([Completion(token=assignment.token) for assignment in held])
    return times


async def _fill(bench: Bench, queue: Queue, url: str, ready: int) -> None:
    """Copy one submitted task many times by SQL, with 100 different priorities."""
    first = await queue.submit(NOOP)
    columns = await columns_of(bench.place, url, "tasks")
    values = ", ".join(_COPIED[bench.place.name].get(column, f"t.{column}") for column in columns)
    series, id_ = series_of(bench.place.name, ready - 1)
    await bench.place.sql(
        url,
        f"insert into tasks ({', '.join(columns)}) select {values} from tasks t, {series} where t.dag_id = t.id",
        f"insert into bodies (task_id, body) select {id_}, b.body from (select body from bodies limit 1) b, {series}",
    )
    assert first.status == "ready"


async def columns_of(place: Place, url: str, table: str) -> list[str]:
    return [row[0] for row in await place.sql(url, _COLUMNS[place.name].format(table=table))]


def series_of(store: str, count: int) -> tuple[str, str]:
    """Return SQL for this many numbered rows, and SQL for a task id made from that number."""
    return _SERIES[store].format(count=count), _COPIED[store]["id"]


_COLUMNS = {
    "postgres": "select attname from pg_attribute where attrelid = '{table}'::regclass and attnum > 0",
    "sqlite": "select name from pragma_table_info('{table}')",
}
_SERIES = {
    "postgres": "generate_series(1, {count}) as s(n)",
    "sqlite": "(with recursive c(n) as (select 1 union all select n + 1 from c where n < {count}) select n from c) s",
}
_PG_ID = "('01900000-0000-7000-8000-' || lpad(to_hex(s.n), 12, '0'))::uuid"
_LITE_ID = "printf('01900000-0000-7000-8000-%012x', s.n)"
_COPIED: dict[str, dict[str, str]] = {
    "postgres": {**dict.fromkeys(("id", "dag_id", "root_id"), _PG_ID), "rank": "t.rank + s.n % 100 * 37 % 100"},
    "sqlite": {**dict.fromkeys(("id", "dag_id", "root_id"), _LITE_ID), "rank": "t.rank + s.n % 100 * 37 % 100"},
}


@measurement
@requirement("C-109", "C-256")
async def scaling(bench: Bench) -> None:
    """Measure 10, 20 and 40 worker processes on tasks that sleep a second, one task at a time each."""
    rates = {workers: await _rate_of(bench, workers) for workers in (10, 20, 40)}
    twice, four = rates[20] / rates[10], rates[40] / rates[10]
    bench.figure("growth from 10 to 20 and from 10 to 40 workers", [twice, four], "times")
    bench.check("C-109", "throughput of 20 worker processes against 10", twice, 1.5, "times", at_least=True)
    bench.check("C-256", "throughput of 40 worker processes against 10", four, 3.0, "times", at_least=True)


async def _rate_of(bench: Bench, workers: int) -> float:
    """Return tasks a second. They sleep so long that two cores carry forty processes; the queue is what is measured."""
    values: list[float] = []
    count = workers * bench.size(12, 4)
    for _ in range(bench.size(3, 1)):
        async with bench.place.url() as url, await Queue.open(url) as queue:
            await load(queue, count, {"type": "sleep", "payload": {"seconds": 1.0}})
            await queue.control.pause()
            async with fleet(queue, workers, 1):
                await queue.control.resume()
                await finished(queue, count)
            rows = await bench.place.sql(url, "select max(ended_at) - min(claimed_at) from attempts")
            values.append(count / rows[0][0])
    bench.figure(f"tasks that sleep a second, {workers} worker processes", values, "tasks/s", f"ideal {workers}")
    return statistics.median(values)


@measurement
@requirement("C-257")
async def memory(bench: Bench) -> None:
    """Measure the resident memory of a worker and of a queue over many tasks, and with a backlog."""
    rounds, each = bench.size(10, 3), bench.size(20_000, 2_000)
    sizes: list[float] = []
    async with bench.place.url() as url, await Queue.open(url) as queue, fleet(queue, 1, 1000) as members:
        for number in range(1, rounds + 1):
            await load(queue, each)
            await finished(queue, number * each)
            sizes.append(members[0].memory_mib())
    bench.figure(f"worker, after {each:,} and after {rounds * each:,} tasks", [sizes[0], sizes[-1]], "MiB")
    async with bench.place.url() as url, await Queue.open(url) as queue:
        await queue.agents.register(id="bench", max_concurrent_tasks=None)
        await load(queue, 10_000)
        before = resident_mib(os.getpid())
        await load(queue, 10_000)
        per_10k = resident_mib(os.getpid()) - before
        bench.figure("queue, growth for 10,000 more queued", [max(0.0, per_10k)], "MiB")
        began = time.perf_counter()
        await drain_in_process(queue)
        bench.figure("queue, after all were worked off", [resident_mib(os.getpid())], "MiB", _took(began))
    bench.check("C-257", "growth of the queue's process for 10,000 queued tasks", per_10k, 20, "MiB")


def _took(began: float) -> str:
    return f"{time.perf_counter() - began:.1f} s"
